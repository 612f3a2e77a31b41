"""Why a run trained nothing, and what to doubt in the model of a run that did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from math import inf, isfinite
from typing import NamedTuple

from counterpoise.engine.rounds.reasons import too_long
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.federation.absence import AWAY, FAILED, SILENT
from counterpoise.measures import curve

__all__ = ["LeftOut", "doubts", "left_out", "untrained"]

_SKIPPED = 3
"""This many skipped rounds at the end make a run doubtful."""
_WORSE = 100
"""A run is doubtful if its last loss is over this many times that of the untrained model."""
_ABSURD = 1000
"""A classifier is doubtful if its last loss is over this, even if training began with such a loss: guessing has a loss of
2.3 for ten classes and of 6.9 for a thousand."""
_STILL = 3
"""This many equal losses on the test set, and no others, make a run doubtful."""
_NAMED = 10
"""A sentence names at most this many clients."""


def untrained(records: Sequence[RoundRecord]) -> str:
    """One sentence that says why no round changed the model; empty if a round did, or if there was none.

    It gives the most frequent reason for skipping a round, and the most frequent one for leaving out a client.
    """
    if not records or not all(record.outcome.skipped for record in records):
        return ""
    skipped = Counter(record.outcome.skipped for record in records)
    said = Counter(why for record in records for why in record.outcome.excluded.values())
    (why, times), count = skipped.most_common(1)[0], len(records)
    rounds = "its only round was skipped" if count == 1 else f"all {count} rounds were skipped"
    often = "" if times == count else f" in {times} of them"
    reason = said.most_common(1)[0][0] if said else ""
    clients = "" if reason in why else f" (clients were left out for this reason: {reason})"
    long = all(too_long(record.outcome.excluded) for record in records)
    advice = " If these clients are neither faulty nor dishonest, raise limits.norm_ratio." if long else ""
    return f"No round trained the model: {rounds},{often} because {why}{clients}.{advice}"


class LeftOut(NamedTuple):
    """A client that was left out: in how many rounds, of how many that asked it, and the most frequent reason."""

    client: int
    times: int
    asked: int
    reason: str


def left_out(records: Sequence[RoundRecord]) -> list[LeftOut]:
    """Every client that was left out of a round, the most often left out first."""
    asked = Counter(client for record in records for client in record.cohort)
    reasons: dict[int, Counter[str]] = {}
    for record in records:
        for client, reason in record.outcome.excluded.items():
            reasons.setdefault(client, Counter())[reason] += 1
    found = [LeftOut(c, said.total(), asked[c], said.most_common(1)[0][0]) for c, said in reasons.items()]
    return sorted(found, key=lambda one: (-one.times, one.client))


def doubts(records: Sequence[RoundRecord], norm_ratio: float, names: Sequence[str] | None = None) -> list[str]:
    """What a user of a finished run's model should know, one sentence each."""
    long = _long(records, norm_ratio, names)
    told = (_stalled(records), _lost(records), _unmoved(records), long, _unheard(records, names), _unjudged(records))
    return [sentence for sentence in told if sentence]


def _stalled(records: Sequence[RoundRecord]) -> str:
    last = list(takewhile(lambda record: record.outcome.skipped, reversed(records)))
    if len(last) < _SKIPPED:
        return ""
    return (
        f"The last {len(last)} rounds were skipped, so the model is that of round {records[-1].round - len(last)}; "
        f"the last was skipped because {last[0].outcome.skipped}."
    )


def _lost(records: Sequence[RoundRecord]) -> str:
    """Compare the last loss with the clients' training loss in the first round, which began with the untrained model.

    The last loss is the one on the test set, or the training loss if the test set was never measured.
    """
    trained, tested = curve(records, "train_loss"), curve(records, "loss")
    if not (found := tested or trained):
        return ""
    before, now = (trained or tested)[0][1], found[-1][1]
    worse = 0 < _WORSE * abs(before) < now < inf
    absurd = now > _ABSURD and bool(curve(records, "accuracy"))
    if isfinite(now) and not worse and not absurd:
        return ""
    compared = f", over {_WORSE} times that of its first round ({before:g})" if worse else ""
    return (
        f"The run ended with a loss of {now:g}{compared}: its model is of no use. Lower the learning rate. "
        "If clients may be dishonest, choose a larger cohort or a robust method."
    )


def _unmoved(records: Sequence[RoundRecord]) -> str:
    losses = [loss for _, loss in curve(records, "loss")]
    if len(losses) < _STILL or len({*losses}) > 1:
        return ""
    return (
        f"The loss on the test set was {losses[0]:g} in every round, so the model hardly moved or not at all. "
        "Perhaps all clients sent zeros, or a learning rate is far too low."
    )


def _unheard(records: Sequence[RoundRecord], names: Sequence[str] | None) -> str:
    """Name the clients whose machines failed or were away whenever they were asked."""
    never = [one for one in left_out(records) if one.times == one.asked and one.reason in (AWAY, FAILED, SILENT)]
    if not never:
        return ""
    return f"The model knows nothing of these clients, which were never heard: {_listed([o.client for o in never], names)}."


def _unjudged(records: Sequence[RoundRecord]) -> str:
    verdicts = [verdict for record in records for verdict in record.outcome.verdicts.values()]
    if not verdicts or any(verdict.judged for verdict in verdicts):
        return ""
    why = next((f" ({verdict.reason})" for verdict in verdicts if verdict.reason), "")
    return (
        f"No client was judged in this run{why}: all claims were believed. With a proxy set on the server, "
        "feddua(..., prior='proxy', factor='direct') judges even a single client."
    )


def _listed(clients: Sequence[int], names: Sequence[str] | None) -> str:
    """Clients by name or number, for a sentence."""
    more = f" and {len(clients) - _NAMED} more" if len(clients) > _NAMED else ""
    return ", ".join(str(client) if names is None else names[client] for client in clients[:_NAMED]) + more


def _long(records: Sequence[RoundRecord], norm_ratio: float, names: Sequence[str] | None) -> str:
    heard = Counter(client for record in records for client in record.outcome.claims)
    long = Counter(client for record in records for client in too_long(record.outcome.excluded))
    mostly = sorted(client for client, times in long.items() if 2 * times > heard[client])
    if not mostly:
        return ""
    return (
        f"Replies of these clients were mostly left out because they were too long: {_listed(mostly, names)}. "
        f"They may be faulty or dishonest; raise limits.norm_ratio ({norm_ratio:g}) only if you know that they are not."
    )
