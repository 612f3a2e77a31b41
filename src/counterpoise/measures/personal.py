"""Means over clients on their held-out parts: by the server's model, and by the model that each would use."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from counterpoise.measures.records import Curve, Record

__all__ = ["client_curve", "has_personal", "own", "own_curve"]


def has_personal(records: Iterable[Record], metric: str = "accuracy") -> bool:
    """Whether personal models were measured."""
    return any(f"personal_{metric}" in r.clients for r in records)


def own(record: Record, metric: str = "accuracy") -> dict[int, float]:
    """Each client's metric on its held-out part, by the model that it would use.

    A client that no round has reached has no personal model yet and uses the server's, so that the same clients count
    whatever the method.
    """
    return {**record.clients.get(metric, {}), **record.clients.get(f"personal_{metric}", {})}


def own_curve(records: Iterable[Record], metric: str = "accuracy") -> Curve:
    """``(round, value)`` of every round that measured clients: the mean of `own` over them."""
    return _means((r.round, own(r, metric)) for r in records)


def client_curve(records: Iterable[Record], metric: str = "accuracy") -> Curve:
    """As `own_curve`, by the server's model for every client."""
    return _means((r.round, r.clients.get(metric, {})) for r in records)


def _means(rounds: Iterable[tuple[int, Mapping[int, float]]]) -> Curve:
    found = ((round, [v for v in each.values() if math.isfinite(v)]) for round, each in rounds)
    return [(round, sum(values) / len(values)) for round, values in found if values]
