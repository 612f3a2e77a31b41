"""Choose the replies that the server uses: one good reply to each message, by the number of the message's client."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.common.constant import ErrorCode

from counterpoise.engine.clients.messages import Arrays, byte_count, show_text, stack_replies
from counterpoise.federation.absence import FAILED, SILENT
from counterpoise.flower.records import Unreadable, from_record
from counterpoise.method import Cohort

__all__ = ["ARRAYS", "CONFIG", "METRICS", "Sifted", "answers", "most_bytes", "read_metrics", "sift_replies"]

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
"""The records of a message, by the names that Flower's own strategies give them."""

log = logging.getLogger(__name__)

T = TypeVar("T")

_NODE_IS_GONE = {ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE}
"""Errors that a SuperLink returns on behalf of a node that is gone."""

_OURS = re.compile(r"\A<class 'counterpoise\.errors\.\w+'>:<'(.*)'>\Z", re.DOTALL)
"""What a SuperNode puts around an error of ours, which is a sentence."""


class Sifted(NamedTuple):
    """The usable replies, stacked in the order of clients' numbers, and why the others are not."""

    cohort: Cohort
    reasons: dict[int, str]
    losses: dict[int, float]
    bytes_up: int
    versions: dict[int, object]
    """Each client's version of this library as its reply gives it; None if a usable reply gives none."""


def most_bytes(like: Arrays) -> int:
    """The most bytes that a reply's arrays may take: enough for float64 instead of float32, and for arrays' headers."""
    return 2 * byte_count(like) + 4096 * (len(like) + 1)


def sift_replies(replies: Iterable[Message], asked: Mapping[str, int], round: int, like: Arrays) -> Sifted:
    """Sort the replies to a round's training into usable ones and others.

    `asked` gives the client of each message sent; `like` is a reply of the right form. Whatever a node sends can only
    cost its own place in the round, nobody else's.
    """
    reasons: dict[int, str] = {}
    good: dict[int, Arrays] = {}
    losses: dict[int, float] = {}
    versions: dict[int, object] = {}
    most = most_bytes(like)
    for client, reply in _one_each(replies, asked, reasons):
        said = reply.content.metric_records.get(METRICS, MetricRecord())
        versions |= {client: said["version"]} if "version" in said else {}  # another version may be why it is unusable
        try:
            arrays, metrics = _records(reply)
            size = sum(len(array.data) for array in arrays.values())
            if size > most:
                raise Unreadable(f"its reply takes {size} bytes, and at most {most} are allowed")
            if metrics.get("round") != round:
                raise Unreadable(f"its reply is not for round {round}")
            good[client] = from_record(arrays)
        except Unreadable as error:
            reasons[client] = str(error)
            continue
        loss = metrics.get("loss")
        versions.setdefault(client, None)
        if isinstance(loss, float) and math.isfinite(loss):
            losses[client] = loss
    cohort, misfits = stack_replies(good, like)
    up = sum(byte_count(arrays) for arrays in good.values())
    return Sifted(cohort, reasons | misfits, losses, up, versions)


def read_metrics(
    replies: Iterable[Message], asked: Mapping[str, int], round: int, names: Mapping[str, tuple[float, float]]
) -> dict[str, dict[int, float]]:
    """What each client measured, by metric, from the replies to a round's evaluation.

    `names` gives the range of each metric; a value outside it is left out, and so are metrics of other names.
    """
    found: dict[str, dict[int, float]] = {}
    for client, reply in _one_each(replies, asked, {}, "failed to evaluate"):
        try:
            _, metrics = _records(reply, arrays=False)
        except Unreadable as error:
            log.warning("round %d: the evaluation of client %d is left out: %s", round, client, error)
            continue
        for name, value in metrics.items() if metrics.get("round") == round else ():
            if name not in names:
                continue
            low, high = names[name]
            if isinstance(value, float) and math.isfinite(value) and low <= value <= high:
                found.setdefault(name, {})[client] = value
            else:
                log.warning("round %d: %s of client %d is left out: %s", round, name, client, show_text(str(value)))
    return {name: dict(sorted(values.items())) for name, values in sorted(found.items())}


def _one_each(
    replies: Iterable[Message], asked: Mapping[str, int], reasons: dict[int, str], failed: str = "failed to train"
) -> list[tuple[int, Message]]:
    """The one reply of each client, in the clients' order. For other clients, the reason is added to `reasons`."""
    came = list(answers(replies, asked))
    counts = Counter(client for client, _ in came)
    reasons |= {client: SILENT for client in asked.values() if not counts[client]}
    reasons |= {client: "it replied more than once" for client, count in counts.items() if count > 1}
    for client, reply in came:
        if counts[client] == 1 and not reply.has_content():
            away = reply.has_error() and reply.error.code in _NODE_IS_GONE
            reasons[client] = SILENT if away else FAILED
            told = _OURS.sub(r"\1", reply.error.reason or "") if reply.has_error() else "an empty reply"
            said = show_text(told, 500)
            log.warning("client %d %s: %s", client, "could not be heard" if away else failed, said)
    return sorted(((c, reply) for c, reply in came if c not in reasons), key=lambda one: one[0])


def answers(replies: Iterable[Message], asked: Mapping[str, T]) -> Iterator[tuple[T, Message]]:
    """Each reply with its entry in `asked`, found by the message's id; the source that a reply names is ignored.

    Only the node that was sent a message knows its id. A reply to any other message counts for nobody and against
    nobody.
    """
    for reply in replies:
        if reply.metadata.reply_to_message_id in asked:
            yield asked[reply.metadata.reply_to_message_id], reply
        else:
            log.warning("a reply is left out: it answers no message of this round")


def _records(reply: Message, arrays: bool = True) -> tuple[ArrayRecord, MetricRecord]:
    content = reply.content
    wanted: dict[str, type] = {METRICS: MetricRecord} | ({ARRAYS: ArrayRecord} if arrays else {})
    for name, kind in wanted.items():
        if not isinstance(content.get(name), kind):
            raise Unreadable(f"its reply lacks the record {name}")
    if len(content) > len(wanted):
        extra = min(name for name in content if name not in wanted)
        raise Unreadable(f"its reply holds the record {show_text(extra)}, which was not asked for")
    return content.array_records.get(ARRAYS, ArrayRecord()), content.metric_records[METRICS]
