"""How a metric is spread over clients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

__all__ = ["Distribution", "distribution"]


class Distribution(NamedTuple):
    """Clients' values; every client counts equally."""

    clients: int
    mean: float
    deviation: float
    """The standard deviation of these clients as a population, not a sample."""
    lowest: float
    lower_quartile: float
    median: float
    upper_quartile: float
    highest: float
    worst_decile: float
    """Mean of the worst tenth of the clients, at least one."""
    best_decile: float
    gap: float
    """The fairness gap: how far apart the two are."""


def distribution(values: Iterable[float], lower: bool = False) -> Distribution:
    """The spread of one value per client; NaN values are left out. `lower` says that lower is better.

    >>> found = distribution([0.2] + [0.8] * 8 + [1.0])
    >>> found.worst_decile, found.best_decile, round(found.gap, 12), round(found.mean, 12)
    (0.2, 1.0, 0.8, 0.76)
    """
    found = np.sort([v for v in values if not math.isnan(v)])
    if not len(found):
        return Distribution(0, *(math.nan,) * 10)
    tenth = math.ceil(len(found) / 10)
    worst, best = float(found[:tenth].mean()), float(found[-tenth:].mean())
    gap = best - worst
    if lower:
        worst, best = best, worst
    low, q1, q2, q3, high = np.quantile(found, (0, 0.25, 0.5, 0.75, 1)).tolist()
    return Distribution(len(found), float(found.mean()), float(found.std()), low, q1, q2, q3, high, worst, best, gap)
