"""Is one method better than another, over the same seeds?"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from counterpoise.errors import CounterpoiseError
from counterpoise.randomness import integer, purpose

__all__ = ["Paired", "bootstrap_interval", "paired", "student_interval"]


class Paired(NamedTuple):
    """One method less another, seed by seed."""

    seeds: int
    difference: float
    """The mean difference."""
    low: float
    high: float
    """The ends of the bootstrap interval of the mean difference."""
    p: float
    """Wilcoxon's signed-rank test, two-sided; 1 where no seed differs.

    With few seeds it cannot be small: at best 0.25 of three, 0.0625 of five, 0.03125 of six."""


def paired(
    values: Sequence[float], baseline: Sequence[float], level: float = 0.95, resamples: int = 9999, seed: int = 0
) -> Paired:
    """Compare two methods that ran with the same seeds, in the same order."""
    if len(values) != len(baseline) or not len(values):
        raise CounterpoiseError(
            f"A paired comparison needs one value of each method per seed; there are {len(values)} and {len(baseline)}."
        )
    differences = np.asarray(values, dtype=float) - np.asarray(baseline, dtype=float)
    if not np.isfinite(differences).all():
        raise CounterpoiseError("A paired comparison needs finite values; a run that diverged has none.")
    low, high = bootstrap_interval(differences.tolist(), level, resamples, seed)
    return Paired(len(differences), float(differences.mean()), low, high, _wilcoxon(differences))


def bootstrap_interval(
    values: Sequence[float], level: float = 0.95, resamples: int = 9999, seed: int = 0
) -> tuple[float, float]:
    """The percentile interval of the mean under resampling (Efron 1979); NaN with fewer than two values."""
    found = np.asarray(values, dtype=float)
    if len(found) < 2:
        return math.nan, math.nan
    generator = np.random.Generator(np.random.Philox(integer(seed, purpose("bootstrap"))))
    means = found[generator.integers(len(found), size=(resamples, len(found)))].mean(1)
    low, high = np.quantile(means, ((1 - level) / 2, (1 + level) / 2)).tolist()
    return low, high


def student_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The interval of a normal mean by Student's t, which holds its level for few values too; NaN with fewer than two."""
    found = np.asarray(values, dtype=float)
    if len(found) < 2:
        return math.nan, math.nan
    from scipy.special import stdtrit

    half = float(stdtrit(len(found) - 1, (1 + level) / 2)) * found.std(ddof=1) / math.sqrt(len(found))
    return float(found.mean() - half), float(found.mean() + half)


def _wilcoxon(differences: np.ndarray) -> float:
    if not differences.any():
        return 1.0
    from scipy.stats import wilcoxon

    with warnings.catch_warnings():  # zeros and ties make it use the normal approximation, and say so
        warnings.simplefilter("ignore")
        return float(wilcoxon(differences).pvalue)
