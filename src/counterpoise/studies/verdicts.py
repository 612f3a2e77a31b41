"""The rules by which our numbers are held against published ones. Nothing else decides a verdict.

All values are in points: an accuracy of 0.62 is 62 points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from counterpoise.measures import Paired, across_seeds, paired, student_factor

__all__ = ["FEWEST", "Claimed", "Judged", "alike", "claim", "half_width", "judge", "judge_lead", "tolerance"]

FEWEST = 5
"""With fewer seeds there is no verdict."""


class Judged(NamedTuple):
    """Our values beside a published one."""

    difference: float
    """Our mean less the published value: d. For a published range, less its nearest end, and 0 within it."""
    half: float
    """How far chance reaches either side of the difference: h. NaN with one seed."""
    tolerance: float
    """A difference up to this counts as none: delta."""
    verdict: str
    """higher, lower, agrees or undecided; empty with fewer than `FEWEST` seeds."""


class Claimed(NamedTuple):
    """Our values beside the claim that one method beats another."""

    paired: Paired
    verdict: str
    """agrees, contradicted or not shown; empty with fewer than `FEWEST` seeds."""
    leads: Sequence[float]
    """By how much the first method is ahead, seed by seed."""


def tolerance(size: float) -> float:
    """The lesser of 1 point and a fifth of what was published: of an error, 100 less the value, or of a lead."""
    return min(1.0, abs(size) / 5)


def half_width(deviation: float, seeds: int, published_seeds: int) -> float:
    """The half of the 95 % interval of the difference of two means, by our deviation over seeds alone."""
    return student_factor(seeds) * deviation * math.sqrt(1 / seeds + 1 / published_seeds)


def judge(values: Sequence[float], published: float, published_seeds: int = 1, to: float | None = None) -> Judged:
    """Hold our values, one for each seed, against a published mean, or against a range that reaches up to `to`.

    `published_seeds` is 1 if it is unknown, or if the published runs share a partition.
    """
    mean, deviation = across_seeds(values)
    nearest = published if to is None else min(max(mean, published), to)
    h = half_width(deviation, len(values), published_seeds)
    return _judged(mean - nearest, h, tolerance(100.0 - nearest), len(values))


def judge_lead(leads: Sequence[float], published: float) -> Judged:
    """Hold our leads of one method over another, one for each seed, against a published lead."""
    mean, deviation = across_seeds(leads)
    return _judged(mean - published, half_width(deviation, len(leads), 1), tolerance(published), len(leads))


def _judged(d: float, h: float, delta: float, seeds: int) -> Judged:
    if seeds < FEWEST:
        word = ""
    elif abs(d) > h and abs(d) > delta:
        word = "higher" if d > 0 else "lower"
    elif abs(d) <= delta or h <= 3 * delta:
        word = "agrees"
    else:
        word = "undecided"
    return Judged(d, h, delta, word)


def claim(better: Mapping[int, float], than: Mapping[int, float]) -> Claimed:
    """Hold our values, by seed, against the claim that the first method beats the second.

    Only seeds that both have count. Seeds that all differ by the same amount, which leave no spread to measure chance
    by, show nothing.
    """
    leads, beside = _beside(better, than)
    if beside.seeds < FEWEST:
        word = ""
    elif beside.low > 0:
        word = "agrees"
    elif beside.high < 0:
        word = "contradicted"
    else:
        word = "not shown"
    return Claimed(beside, word, leads)


def alike(one: Mapping[int, float], other: Mapping[int, float], within: float) -> Claimed:
    """Hold our values, by seed, against the claim that two methods differ by less than `within`."""
    leads, beside = _beside(one, other)
    if beside.seeds < FEWEST:
        word = ""
    elif -within < beside.low and beside.high < within:
        word = "agrees"
    elif beside.low > within or beside.high < -within:
        word = "contradicted"
    else:
        word = "not shown"
    return Claimed(beside, word, leads)


def _beside(one: Mapping[int, float], other: Mapping[int, float]) -> tuple[list[float], Paired]:
    shared = sorted(one.keys() & other.keys())
    first, second = [one[seed] for seed in shared], [other[seed] for seed in shared]
    return [a - b for a, b in zip(first, second, strict=True)], paired(first, second)
