"""What a study measures in each round of a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.errors import unknown
from counterpoise.measures import Curve, count_error, couplings, curve, effective_clients, own, own_curve
from counterpoise.measures import false_alarms as share_of_honest
from counterpoise.measures import recall as share_of_lies

__all__ = ["check_measure", "curve_of", "lower_is_better", "scale_of"]

_PERSONAL, _COUPLING, _NOTE, _CHOSEN = "personal ", "coupling of ", "note ", " chosen by clients"
_BY_DATA = " by data"
_TWICE = "honest clients left out twice"


def curve_of(records: Sequence[RoundRecord], measure: str) -> Curve:
    """A measure by round, without rounds that did not measure it.

    - ``personal accuracy``: the mean over clients of the model that each would use
    - ``personal accuracy by data``: the same over the clients of the round, weighed by the counts that they claim
    - ``coupling of weight``, or of a note: its rank correlation with the clients' accuracy
    - ``note alpha``: the mean over the round's clients of what was noted for them
    - ``accuracy chosen by clients``: the test accuracy of the round so far that is best on the clients' held-out data
    - ``effective clients``: how many equal weights would average out as much
    - ``detection recall``, ``detection false alarms``: shares of lies and of honest claims that were rejected
    - ``count error``: of the counts estimated for honest clients, the median relative error
    - ``honest replies left out``, ``hostile replies left out``: shares of a round's honest and hostile replies
    - ``honest clients left out twice``: the share of those heard so far that were left out in more than one round

    Everything else is measured on the test set.
    """
    if measure in _BY_ROUND:
        found = [(record.round, _BY_ROUND[measure](record)) for record in records]
    elif measure == "effective clients":
        found = effective_clients(records)
    elif measure == _TWICE:
        found = _left_out_twice(records)
    elif measure.startswith(_PERSONAL) and measure.endswith(_BY_DATA):
        metric = measure.removeprefix(_PERSONAL).removesuffix(_BY_DATA)
        found = [(record.round, _by_data(record, metric)) for record in records]
    elif measure.startswith(_PERSONAL):
        return own_curve(records, measure.removeprefix(_PERSONAL))
    elif measure.startswith(_COUPLING):
        found = couplings(records, measure.removeprefix(_COUPLING))
    elif measure.startswith(_NOTE):
        name = measure.removeprefix(_NOTE)
        found = [(record.round, _mean(record.outcome.notes.get(name, {}))) for record in records]
    elif measure.endswith(_CHOSEN):
        return _chosen_by_clients(records, measure.removesuffix(_CHOSEN))
    else:
        return curve(records, measure)
    return [pair for pair in found if not math.isnan(pair[1])]


def check_measure(measure: str, metrics: Iterable[str], where: str) -> None:
    """Refuse a measure that runs with these metrics will not have. What a method notes is known only when it runs."""
    every = {"loss", *metrics}
    known = {"effective clients", _TWICE, *_BY_ROUND, *every, *(f"train_{name}" for name in every)}
    known |= {_PERSONAL + name + more for name in every for more in ("", _BY_DATA)}
    known |= {name + _CHOSEN for name in every}
    if measure not in known and not measure.startswith((_COUPLING, _NOTE)):
        raise unknown("measure", measure, known, where)


def scale_of(measure: str) -> float:
    """What a value is multiplied with: 100 for a share, so that it is in points."""
    plain = _is_loss(measure) or measure.startswith(_NOTE) or measure == "effective clients"
    return 1.0 if plain else 100.0


def lower_is_better(measure: str) -> bool:
    """Whether less of it is better, as of a loss."""
    return _is_loss(measure) or measure in ("detection false alarms", "count error", "honest replies left out", _TWICE)


def _is_loss(measure: str) -> bool:
    return measure.removesuffix(_BY_DATA).endswith("loss")


def _mean(values: Mapping[int, float]) -> float:
    return float(np.mean(list(values.values()))) if values else math.nan


def _by_data(record: RoundRecord, metric: str) -> float:
    """The mean over a round's clients of the model that each would use, weighed by their data."""
    measured = own(record, metric)
    pairs = [(measured[client], count) for client, count in record.outcome.claims.items() if client in measured]
    total = sum(count for _, count in pairs)
    return sum(value * count for value, count in pairs) / total if total else math.nan


def _chosen_by_clients(records: Sequence[RoundRecord], metric: str) -> Curve:
    """After each round, the test value of the first round so far that is best on the clients' held-out data."""
    found: Curve = []
    best, value = -math.inf, math.nan
    for record in records:
        if metric in record.metrics and record.clients.get(metric):
            if (mean := _mean(record.clients[metric])) > best:
                best, value = mean, record.metrics[metric]
            found.append((record.round, value))
    return found


def _recall(record: RoundRecord) -> float:
    return share_of_lies(*_judged(record))


def _false_alarms(record: RoundRecord) -> float:
    return share_of_honest(*_judged(record))


def _judged(record: RoundRecord) -> tuple[list[bool], list[bool]]:
    """Which verdicts of a round reject a claim, and which of the claims are lies."""
    verdicts = record.outcome.verdicts
    return [one.action != "accepted" for one in verdicts.values()], [client in record.liars for client in verdicts]


def _count_error(record: RoundRecord) -> float:
    honest = [one for client, one in record.outcome.verdicts.items() if client not in record.liars]
    known = [(one.estimated, one.claimed) for one in honest if one.estimated is not None]
    return count_error([guess for guess, _ in known], [claimed for _, claimed in known])


def _honest(record: RoundRecord) -> set[int]:
    """The honest clients that replied."""
    return set(record.outcome.claims) - set(record.liars)


def _honest_left_out(record: RoundRecord) -> float:
    return _left_out(record, _honest(record))


def _hostile_left_out(record: RoundRecord) -> float:
    return _left_out(record, set(record.outcome.claims) & set(record.liars))


def _left_out(record: RoundRecord, clients: set[int]) -> float:
    """The share of these clients, all of which replied, that the method left out."""
    return len(clients & set(record.outcome.excluded)) / len(clients) if clients else math.nan


def _left_out_twice(records: Sequence[RoundRecord]) -> Curve:
    times: Counter[int] = Counter()
    heard: set[int] = set()
    found: Curve = []
    for record in records:
        honest = _honest(record)
        heard |= honest
        times.update(honest & set(record.outcome.excluded))
        found.append((record.round, sum(often > 1 for often in times.values()) / len(heard) if heard else math.nan))
    return found


_BY_ROUND: Mapping[str, Callable[[RoundRecord], float]] = {
    "detection recall": _recall,
    "detection false alarms": _false_alarms,
    "count error": _count_error,
    "honest replies left out": _honest_left_out,
    "hostile replies left out": _hostile_left_out,
}
