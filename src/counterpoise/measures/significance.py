"""Is one method better than another, over the same seeds?"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from counterpoise.errors import CounterpoiseError

__all__ = ["MOST_SEEDS", "WILCOXON_FROM", "Paired", "paired", "seeds_needed", "student_factor", "student_interval"]

WILCOXON_FROM = 6
"""With fewer seeds Wilcoxon's p cannot be below 0.05: at best 0.25 with three, 0.0625 with five, 0.03125 with six."""
MOST_SEEDS = 1000
"""If a difference would take more seeds than this, `seeds_needed` gives up."""
_CONSTANT = 1e-12
"""Differences that vary by less than this share of the values count as one number plus rounding errors."""


class Paired(NamedTuple):
    """One method minus another, seed by seed, and what a paired t-test says about it."""

    seeds: int
    difference: float
    """The mean difference."""
    low: float
    high: float
    """The ends of Student's interval of the mean difference.

    NaN if there is no spread to measure chance by: with one seed, or if every seed differs by the same amount."""
    p: float
    """The two-sided p of the same test, so that it is below 0.05 exactly if the 95 % interval excludes 0.

    1 if no seed differs; NaN if the interval is NaN."""
    wilcoxon: float
    """The two-sided p of Wilcoxon's signed-rank test, which does not assume that differences are normal.

    NaN below `WILCOXON_FROM` seeds, and if the interval is NaN."""

    @property
    def least(self) -> float:
        """Roughly the smallest mean difference that could be told from noise if seeds vary this much."""
        return (self.high - self.low) / 2


def paired(values: Sequence[float], baseline: Sequence[float], level: float = 0.95) -> Paired:
    """Compare two methods that ran with the same seeds, in the same order."""
    if len(values) != len(baseline) or not len(values):
        raise CounterpoiseError(
            f"A paired comparison needs one value of each method per seed; there are {len(values)} and {len(baseline)}."
        )
    ours, theirs = np.asarray(values, dtype=float), np.asarray(baseline, dtype=float)
    differences = ours - theirs
    scale = float(np.abs([ours, theirs]).max())
    if not np.isfinite(differences).all():
        raise CounterpoiseError("A paired comparison needs finite values; a run that diverged has none.")
    varies = np.ptp(differences) > _CONSTANT * scale
    differences = _rounded(differences, scale)
    count, mean = len(differences), float(differences.mean())
    if count < 2 or (differences.any() and not varies):
        return Paired(count, mean, math.nan, math.nan, math.nan, math.nan)
    return Paired(count, mean, *student_interval(differences, level), _student(differences), _wilcoxon(differences))


def _rounded(differences: np.ndarray, scale: float) -> np.ndarray:
    """Round differences to about twelve digits of the values, so that 0.3 - 0.2 and 0.2 - 0.1 are a tie."""
    return np.round(differences, min(12 - math.floor(math.log10(scale)), 300)) if scale else differences


def student_interval(values: Sequence[float] | np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Student's t interval for the mean of normal values, exact even for few of them; NaN with fewer than two."""
    found = np.asarray(values, dtype=float)
    if len(found) < 2:
        return math.nan, math.nan
    half = student_factor(len(found), level) * _error(found)
    return float(found.mean() - half), float(found.mean() + half)


def student_factor(count: int, level: float = 0.95) -> float:
    """How many standard errors Student's interval of this many values reaches either side; NaN for fewer than two."""
    if count < 2:
        return math.nan
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, (1 + level) / 2))


def seeds_needed(beside: Paired, level: float = 0.95) -> int | None:
    """How many seeds in all would put 0 outside the interval if difference and spread stayed as they are.

    None if nothing differs, if there is no spread to go by, or if it would take more than `MOST_SEEDS`.

    >>> seeds_needed(paired([1.0, 2.0, 3.0], [0.0, 0.0, 0.0]))  # of spread 1 and mean 2: 4.30 / sqrt(3) > 2
    4
    """
    if not math.isfinite(beside.least) or not beside.difference:
        return None
    deviation = beside.least * math.sqrt(beside.seeds) / student_factor(beside.seeds, level)
    counts = range(2, MOST_SEEDS + 1)
    return next(
        (n for n in counts if student_factor(n, level) * deviation / math.sqrt(n) < abs(beside.difference)), None
    )


def _student(differences: np.ndarray) -> float:
    """The two-sided p of Student's test that the mean is 0."""
    if not differences.any():
        return 1.0
    from scipy.special import stdtr

    return float(2 * stdtr(len(differences) - 1, -abs(differences.mean()) / _error(differences)))


def _error(values: np.ndarray) -> float:
    """The standard error of the mean."""
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def _wilcoxon(differences: np.ndarray) -> float:
    if len(differences) < WILCOXON_FROM:
        return math.nan
    if not differences.any():
        return 1.0
    from scipy.stats import wilcoxon

    with warnings.catch_warnings():  # zeros and ties make it use the normal approximation, with a warning
        warnings.simplefilter("ignore")
        return float(wilcoxon(differences).pvalue)
