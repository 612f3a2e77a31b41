"""No client counts for more than a few clients with the cohort's median count."""

from __future__ import annotations

from math import inf

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Part, Round
from counterpoise.parts.columns import Numbers, fetch
from counterpoise.parts.robust import middle

__all__ = ["cap", "capped", "check_cap"]


def capped(most: float = 3.0) -> Part:
    """Lower each weight to at most `most` times the cohort's median weight; 0 lowers none.

    With weights by data this is ``min(n_i, most median_j n_j)``. The counts stay as they are, because the steps that a
    client was asked for follow from them. A rule without weights, or with weights per layer, is left alone.
    """
    check_cap(most)

    def apply(round: Round) -> Round:
        if round.weights is None or round.weights.ndim > 1:
            return round
        return round.but(weights=round.weights.clamp(max=cap(fetch(round.weights)[0], most)))

    return Part("capped", apply=apply, by_counts=False)


def check_cap(most: float) -> None:
    """Refuse a cap below the median: it would lower most counts to one number, which is a mean without counts."""
    if 0 < most < 1:
        raise CounterpoiseError(
            f"A cap on counts (capped, memory_cap) of {most:g} medians would make most clients count alike. Give at "
            'least 1, or 0 for no cap; for clients that all count alike, take weights="uniform".'
        )


def cap(counts: Numbers, most: float) -> float:
    """``most median_j n_j``, for `most` 0 infinity; of an even number, the median is the mean of the middle two.

    >>> from numpy import array
    >>> cap(array([10.0, 20.0, 30.0, 400.0]), 3)
    75.0
    """
    return most * middle(counts) if most else inf
