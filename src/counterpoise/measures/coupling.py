"""Do the clients that a rule favours do well? Rank correlations per round, and how many clients count."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from counterpoise.measures.records import Curve, Record

__all__ = ["couplings", "effective_clients", "effective_number", "spearman"]


def spearman(a: Mapping[int, float], b: Mapping[int, float]) -> float:
    """Spearman's rank correlation over the clients that both have; equal values share their mean rank.

    NaN with fewer than three clients, or if all values of one side are equal.
    """
    shared = [c for c in a if c in b and not math.isnan(a[c]) and not math.isnan(b[c])]
    if len(shared) < 3:
        return math.nan
    left, right = (_ranks([side[c] for c in shared]) for side in (a, b))
    left, right = left - left.mean(), right - right.mean()
    scale = math.sqrt(float(left @ left) * float(right @ right))
    return float(left @ right) / scale if scale else math.nan


def _ranks(values: list[float]) -> np.ndarray:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    mean_rank: np.ndarray = np.cumsum(count) - (count - 1) / 2
    return mean_rank[place]


def couplings(records: Iterable[Record], of: str = "weight", metric: str = "accuracy") -> Curve:
    """``(round, correlation)`` of clients' weights, or of a number noted for them, with their own metric.

    `of` is ``"weight"`` or the name of a note, such as ``"reliability"`` or ``"contribution"``. Only
    rounds that evaluated clients count, and in them only the clients heard.
    """
    found = []
    for record in records:
        values = record.outcome.weights if of == "weight" else record.outcome.notes.get(of)
        if values and metric in record.clients:
            found.append((record.round, spearman(values, record.clients[metric])))
    return found


def effective_number(weights: Iterable[float]) -> float:
    """How many equal weights would average out as much: ``(sum w)^2 / sum w^2`` (Kish 1965).

    >>> effective_number([0.25] * 4), effective_number([1, 0, 0, 0])
    (4.0, 1.0)
    """
    found = np.asarray(list(weights), dtype=float)
    squares = float(found @ found)
    return float(found.sum()) ** 2 / squares if squares else math.nan


def effective_clients(records: Iterable[Record]) -> Curve:
    """``(round, effective number of clients)`` of the rounds that have weights."""
    return [(r.round, effective_number(r.outcome.weights.values())) for r in records if r.outcome.weights]
