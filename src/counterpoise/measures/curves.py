"""A metric over rounds: its last and best values, and how fast and how smoothly it got there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from counterpoise.measures.records import Curve, Record

__all__ = [
    "Best",
    "across_seeds",
    "best",
    "best_by_clients",
    "bytes_to",
    "curve",
    "last",
    "mean_of_last",
    "rounds_to",
    "volatility",
]


def curve(records: Iterable[Record], metric: str = "accuracy") -> Curve:
    """``(round, value)`` of every round that measured the metric on the test set."""
    return [(r.round, r.metrics[metric]) for r in records if metric in r.metrics]


def last(curve: Curve) -> float:
    """The value of the last round measured; NaN without one."""
    return curve[-1][1] if curve else math.nan


def mean_of_last(curve: Curve, rounds: int = 10) -> float:
    """The mean over the rounds measured among the last `rounds` of the run; NaN without one."""
    return float(np.mean([v for r, v in curve if r > curve[-1][0] - rounds])) if curve else math.nan


class Best(NamedTuple):
    """A best value, and the first round that reached it."""

    value: float
    round: int | None


def best(curve: Curve, lower: bool = False) -> Best:
    """The best round. It is chosen by the value it reports, so it is optimistic. Say `lower` for a loss."""
    real = [(v, r) for r, v in curve if not math.isnan(v)]
    if not real:
        return Best(math.nan, None)
    value, round = min(real) if lower else min(real, key=lambda pair: (-pair[0], pair[1]))
    return Best(value, round)


def best_by_clients(records: Iterable[Record], metric: str = "accuracy", lower: bool = False) -> Best:
    """The test value of the round whose mean over clients' held-out parts is best, so no test sample chose it.

    Only rounds that measured both are considered.
    """
    both = [r for r in records if metric in r.metrics and r.clients.get(metric)]
    chosen = best([(r.round, float(np.mean(list(r.clients[metric].values())))) for r in both], lower).round
    return Best(next((value for round, value in curve(both, metric) if round == chosen), math.nan), chosen)


def volatility(curve: Curve) -> float:
    """The mean absolute change from one round measured to the next; NaN with fewer than two."""
    values = np.array([v for _, v in curve])
    return float(np.abs(np.diff(values)).mean()) if len(values) > 1 else math.nan


def rounds_to(curve: Curve, target: float, lower: bool = False) -> int | None:
    """The first round whose value reaches the target; None if it never does."""
    return next((r for r, v in curve if (v <= target if lower else v >= target)), None)


def bytes_to(records: Sequence[Record], target: float, metric: str = "accuracy", lower: bool = False) -> int | None:
    """Bytes sent both ways until the metric reaches the target; None if it never does."""
    reached = rounds_to(curve(records, metric), target, lower)
    return None if reached is None else sum(r.bytes_up + r.bytes_down for r in records if r.round <= reached)


def across_seeds(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (n - 1) of one value per seed; the deviation is NaN with one seed."""
    found = np.asarray(values, dtype=float)
    if not len(found):
        return math.nan, math.nan
    return float(found.mean()), float(found.std(ddof=1)) if len(found) > 1 else math.nan
