"""Send messages to nodes, and match each reply with the message it answers, whatever the reply says about itself.

A SuperLink checks the key of the node that calls it. It does not check what a reply says about its source, the message
it answers or its contents. So the server attributes a reply to the client whose message it answers, by that message's
id. An id is a digest of the message, and every message contains a new secret. So only the node that received a message
can answer it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.superlink.grid import HttpGrid, InMemoryGrid

from counterpoise.errors import CounterpoiseError

__all__ = ["SMALL", "exchange", "with_secret"]

SMALL = 2**20
"""Bytes allowed for a reply without arrays, and for everything but the arrays in other replies."""

log = logging.getLogger(__name__)

_SHORTEST_WAIT, _LONGEST_WAIT = 0.2, 1.0
_AT_ONCE = 100
"""Objects fetched of one reply before the next reply's turn, so that a reply in many pieces delays no other."""


def with_secret(values: Mapping[str, Any]) -> ConfigRecord:
    """A message's values, with a secret that makes the message's id impossible to guess."""
    return ConfigRecord({**values, "secret": secrets.token_hex(16)})


def exchange(grid: Grid, messages: Iterable[Message], timeout: float, most: int) -> list[Message]:
    """Send messages and return the replies that arrive within `timeout` seconds, each of at most `most` bytes.

    A reply that cannot be read, or that arrives incomplete, does not affect the others. With other grids than Flower's
    own, nobody knows who sent a reply. They are refused unless they have `in_process = True`, which says that all nodes
    run in this process.
    """
    sent = list(messages)
    if not isinstance(grid, HttpGrid):
        if not isinstance(grid, InMemoryGrid) and getattr(grid, "in_process", False) is not True:
            raise CounterpoiseError(
                f"Replies through {type(grid).__name__} may come from anybody: counterpoise can tell who sent a reply "
                "only with Flower's HttpGrid, which a ServerApp on a SuperLink uses. Run the app there, or, if all "
                "nodes of this grid are in this process, set in_process = True on its class."
            )
        return list(grid.send_and_receive(sent, timeout=timeout)) if sent else []
    awaited = {id for id in grid.push_messages(sent) if id} if sent else set()
    coming: dict[str, _Parcel] = {}
    replies: list[Message] = []
    end, wait = time.monotonic() + timeout, _SHORTEST_WAIT
    while awaited or coming:
        late = time.monotonic() >= end  # then look one last time
        for id, parcel in _find_parcels(grid, awaited).items():
            awaited.remove(id)
            coming[id] = parcel
        for id in [id for id, parcel in coming.items() if _fetch_rest(grid, parcel, most)]:
            reply = _open_parcel(grid, coming.pop(id), id)
            replies += [] if reply is None else [reply]
        if late:
            break
        if awaited or any(parcel.waiting for parcel in coming.values()):
            time.sleep(max(0.0, min(wait, end - time.monotonic())))
            wait = min(1.5 * wait, _LONGEST_WAIT)
    return replies


@dataclass
class _Parcel:
    """A reply that a SuperLink has announced, and those of its objects that have arrived."""

    root: str
    missing: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)
    size: int = 0
    waiting: bool = False
    """Whether the SuperLink does not have the next object yet."""


def _find_parcels(grid: HttpGrid, awaited: set[str]) -> dict[str, _Parcel]:
    """The replies to these messages that a SuperLink has, by the id of the message."""
    if not awaited:
        return {}
    # Not grid.pull_messages: if it cannot read one reply, it loses all of them.
    answer = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=sorted(awaited)))
    found = {
        one.metadata.reply_to_message_id: _Parcel(
            one.metadata.message_id, [node.object_id for node in iterate_object_tree(tree)]
        )
        for one, tree in zip(answer.messages_list, answer.message_object_trees, strict=True)
        if one.metadata.reply_to_message_id in awaited
    }
    if unasked := len(answer.messages_list) - len(found):
        log.warning("%d messages are left out: they do not answer any message that was sent", unasked)
    return found


def _fetch_rest(grid: HttpGrid, parcel: _Parcel, most: int) -> bool:
    """Fetch what is available of a reply. Returns whether this was all: it is complete, too large or abandoned."""
    fetch = make_pull_object_fn_protobuf(grid._runtime_client.PullObject, grid.node, grid.run.run_id)
    parcel.waiting = False
    try:
        for _ in range(_AT_ONCE):
            if not parcel.missing:
                return True
            content = parcel.contents[parcel.missing[-1]] = fetch(parcel.missing[-1])
            parcel.size += len(content)
            if parcel.size > most:
                log.warning("a reply is left out: it is larger than the %d bytes allowed", most)
                return True
            parcel.missing.pop()
        return not parcel.missing
    except ObjectUnavailableError:
        parcel.waiting = True
        return False
    except ObjectPullError:
        log.warning("a reply is left out: its sender did not send all of it")
    return True


def _open_parcel(grid: HttpGrid, parcel: _Parcel, id: str) -> Message | None:
    """The reply to the message with this id, if the parcel holds one."""
    grid._runtime_client.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(node=grid.node, run_id=grid.run.run_id, message_object_id=parcel.root)
    )
    if parcel.missing:
        return None
    try:
        reply = inflate_object_from_contents(parcel.root, parcel.contents)
    except Exception as error:  # anything that Flower may raise on a stranger's bytes
        log.warning("a reply is left out: it cannot be read (%s)", type(error).__name__)
        return None
    if not isinstance(reply, Message) or reply.metadata.reply_to_message_id != id:
        log.warning("a reply is left out: it claims to answer a different message")
        return None
    return reply
