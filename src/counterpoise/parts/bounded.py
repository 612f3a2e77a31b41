"""Updates clipped relative to the cohort's median length."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from counterpoise.method import Part, Round
from counterpoise.parts.columns import Numbers, column, lengths
from counterpoise.parts.robust import middle

__all__ = ["bounded", "clip_factors", "clip_rows", "shorten"]

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

    >>> clip_rows(Tensor([[0.0], [1.0], [-2.0], [30.0]]), 2).tolist()
    [[0.0], [1.0], [-2.0], [4.0]]
    """
    return shorten(rows, clip_factors(lengths(rows), most))


def clip_factors(found: Numbers, most: float) -> Numbers:
    """The factors ``[C]``, at most 1, by which `clip_rows` shortens rows whose lengths were found."""
    moved, factors = found[found > 0], np.ones_like(found)
    if not most or len(moved) < _FEWEST:
        return factors
    longest = most * middle(moved)
    return np.divide(longest, found, out=factors, where=found > longest)


def shorten(rows: Tensor, factors: Numbers) -> Tensor:
    """Rows times their factors; the same rows if all are 1."""
    return rows * column(factors, rows) if factors.min() < 1 else rows
