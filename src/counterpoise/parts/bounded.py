"""Updates clipped relative to the cohort's median length."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from counterpoise.method import Part, Round

__all__ = ["bounded", "clip_rows"]

_FEWEST = 3
"""A median of fewer lengths than this says nothing about any of them."""


def bounded(most: float = 2.0) -> Part:
    """Clip each update to `most` times the cohort's median length. Zeros do not count in the median; 0 clips nothing."""

    def apply(round: Round) -> Round:
        return round.but(cohort=replace(round.cohort, updates=clip_rows(round.cohort.updates, most)))

    return Part("bounded", apply=apply, by_counts=False)


def clip_rows(rows: Tensor, most: float) -> Tensor:
    """Shorten rows ``[C, D]`` to at most `most` times the median length of those that are not zero.

    Of an even number, the median is the mean of the middle two. With fewer than three rows that are not zero, or with
    `most` 0, no row changes.

    >>> clip_rows(torch.tensor([[0.0], [1.0], [-2.0], [30.0]]), 2).tolist()
    [[0.0], [1.0], [-2.0], [4.0]]
    """
    if not most:
        return rows
    lengths = torch.linalg.vector_norm(rows, dim=1).cpu()  # a few numbers: kernels for them would take longer
    moved = int((lengths > 0).sum())
    if moved < _FEWEST:
        return rows
    still = len(rows) - moved
    longest = most * lengths.sort().values[[still + (moved - 1) // 2, still + moved // 2]].mean()
    factors = torch.where(lengths > longest, longest / lengths, 1)
    return rows * factors.to(rows.device)[:, None] if (factors < 1).any() else rows
