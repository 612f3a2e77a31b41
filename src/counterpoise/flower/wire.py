"""Messages to nodes, and each reply matched with the message it answers, whatever its sender wrote.

A SuperLink checks the key of the node that calls it, and nothing of what the node's reply says about itself: the source,
the message replied to and the contents are the sender's words. So a reply counts for the client whose message it
answers, by the id of that message. An id is a digest of the message, and every message carries a fresh secret, so only
the node that was sent a message can answer it.
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
"""Bytes allowed for a reply without arrays, and for what surrounds the arrays of any other."""

log = logging.getLogger(__name__)

_SHORTEST_WAIT, _LONGEST_WAIT = 0.2, 1.0
_AT_ONCE = 100
"""So many objects of one reply are fetched before it is the others' turn, so that a reply in many pieces delays nobody."""


def with_secret(values: Mapping[str, Any]) -> ConfigRecord:
    """Values for a message, and beside them a secret that makes the message's id impossible to guess."""
    return ConfigRecord({**values, "secret": secrets.token_hex(16)})


def exchange(grid: Grid, messages: Iterable[Message], timeout: float, most: int) -> list[Message]:
    """Send messages; the replies that came within so many seconds, each no larger than `most` bytes.

    A reply that cannot be read, or that never comes whole, costs nobody else's. Of a grid that is unknown here nobody can
    say who its senders are: it is refused, unless it says by `in_process = True` that no stranger is among them.
    """
    sent = list(messages)
    if not isinstance(grid, HttpGrid):
        if not isinstance(grid, InMemoryGrid) and getattr(grid, "in_process", False) is not True:
            raise CounterpoiseError(
                f"Replies that come through {type(grid).__name__} may be anybody's: counterpoise can only tell who sent a "
                "reply through Flower's HttpGrid, which a ServerApp has on a SuperLink. Run the app there, or, if all "
                "nodes of this grid are in this process, set in_process = True on its class."
            )
        return list(grid.send_and_receive(sent, timeout=timeout)) if sent else []
    awaited = {id for id in grid.push_messages(sent) if id} if sent else set()
    coming: dict[str, _Parcel] = {}
    replies: list[Message] = []
    end, wait = time.monotonic() + timeout, _SHORTEST_WAIT
    while awaited or coming:
        late = time.monotonic() >= end  # and one last look
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
    """A reply that a SuperLink has announced, as its objects come in."""

    root: str
    missing: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)
    size: int = 0
    waiting: bool = False
    """Whether the SuperLink does not have the next object yet."""


def _find_parcels(grid: HttpGrid, awaited: set[str]) -> dict[str, _Parcel]:
    """The replies that are there for these messages, by the message's id."""
    if not awaited:
        return {}
    # Not grid.pull_messages: when it cannot read one reply, it loses everybody's.
    answer = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=sorted(awaited)))
    found = {
        one.metadata.reply_to_message_id: _Parcel(
            one.metadata.message_id, [node.object_id for node in iterate_object_tree(tree)]
        )
        for one, tree in zip(answer.messages_list, answer.message_object_trees, strict=True)
        if one.metadata.reply_to_message_id in awaited
    }
    if unasked := len(answer.messages_list) - len(found):
        log.warning("%d messages are left out: they answer nothing that was asked", unasked)
    return found


def _fetch_rest(grid: HttpGrid, parcel: _Parcel, most: int) -> bool:
    """Fetch what there is of a reply. Whether no more will come: it is complete, too large, or was given up."""
    fetch = make_pull_object_fn_protobuf(grid._runtime_client.PullObject, grid.node, grid.run.run_id)
    parcel.waiting = False
    try:
        for _ in range(_AT_ONCE):
            if not parcel.missing:
                return True
            content = parcel.contents[parcel.missing[-1]] = fetch(parcel.missing[-1])
            parcel.size += len(content)
            if parcel.size > most:
                log.warning("a reply is left out: it takes over %d bytes, the most allowed", most)
                return True
            parcel.missing.pop()
        return not parcel.missing
    except ObjectUnavailableError:
        parcel.waiting = True
        return False
    except ObjectPullError:
        log.warning("a reply is left out: its sender did not send the whole of it")
    return True


def _open_parcel(grid: HttpGrid, parcel: _Parcel, id: str) -> Message | None:
    """The reply to the message of this id, if the parcel holds one."""
    grid._runtime_client.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(node=grid.node, run_id=grid.run.run_id, message_object_id=parcel.root)
    )
    if parcel.missing:
        return None
    try:
        reply = inflate_object_from_contents(parcel.root, parcel.contents)
    except Exception as error:  # whatever a stranger's bytes make Flower raise
        log.warning("a reply is left out: it cannot be read (%s)", type(error).__name__)
        return None
    if not isinstance(reply, Message) or reply.metadata.reply_to_message_id != id:
        log.warning("a reply is left out: it says that it answers another message than it does")
        return None
    return reply
