"""No client counts for more than a few clients with the cohort's median count."""

from __future__ import annotations

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Part, Round

__all__ = ["cap_counts", "capped", "check_cap"]


def capped(most: float = 3.0) -> Part:
    """Lower each weight to at most `most` times the cohort's median weight; 0 lowers none.

    With weights by data this is ``min(n_i, most median_j n_j)``. The counts stay as they are, because the steps that a
    client was asked for follow from them. A rule without weights, or with weights per layer, is left alone.
    """
    check_cap(most)

    def apply(round: Round) -> Round:
        if round.weights is None or round.weights.ndim > 1:
            return round
        return round.but(weights=cap_counts(round.weights, most))

    return Part("capped", apply=apply, by_counts=False)


def check_cap(most: float) -> None:
    """Refuse a cap below the median: it would lower most counts to one number, which is a mean without counts."""
    if 0 < most < 1:
        raise CounterpoiseError(
            f"A cap on counts (capped, memory_cap) of {most:g} medians would make most clients count alike. Give at "
            'least 1, or 0 for no cap; for clients that all count alike, take weights="uniform".'
        )


def cap_counts(counts: Tensor, most: float) -> Tensor:
    """``min(n_i, most median_j n_j)``; of an even number, the median is the mean of the middle two.

    >>> cap_counts(torch.tensor([10.0, 20.0, 20.0, 400.0]), 3).tolist()
    [10.0, 20.0, 20.0, 60.0]
    """
    if not most:
        return counts
    ordered = counts.sort().values
    middle = (ordered[(len(counts) - 1) // 2] + ordered[len(counts) // 2]) / 2
    return torch.minimum(counts, most * middle)
