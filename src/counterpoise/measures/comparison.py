"""Several methods over several seeds: where each ended, how it compares with a baseline, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from counterpoise.measures.columns import COLUMNS, Finished
from counterpoise.measures.curves import across_seeds, last
from counterpoise.measures.fairness import distribution
from counterpoise.measures.naming import PERSONAL, curve_by, of_clients
from counterpoise.measures.records import Record
from counterpoise.measures.significance import Paired, paired, student_interval

__all__ = ["Standing", "best_two", "on_shared_seeds", "standings"]


class Standing(NamedTuple):
    """One of the methods compared; NaN stands for what was not measured."""

    label: str
    values: Mapping[int, float]
    """By seed, the metric in the last round that measured it."""
    mean: float
    deviation: float
    """Sample standard deviation over seeds; NaN with one seed."""
    low: float
    high: float
    """Student's 95 % interval of the mean; NaN with one seed."""
    paired: Paired | None
    """The difference from the baseline over shared seeds; None for the baseline itself, or if there are none."""
    measures: Mapping[str, float]
    """The mean over seeds of each of `COLUMNS`, by its name; also an attribute: ``standing.volatility``."""

    def __getattr__(self, name: str) -> float:
        if name in self.measures:
            return self.measures[name]
        raise AttributeError(name)


def standings(
    runs: Mapping[str, Mapping[int, Sequence[Record]]],
    baseline: str = "",
    metric: str = "accuracy",
    lower: bool = False,
    personal: bool = False,
) -> list[Standing]:
    """A standing for each label, from its finished runs by seed. `lower` says that a lower metric is better.

    The metric is that of the server's model on the test set, or a mean over clients (see `curve_by`). `personal` stands
    for the prefix of the same name.
    """
    metric = PERSONAL + metric if personal else metric
    values = {label: {seed: last(curve_by(r, metric)) for seed, r in seeds.items()} for label, seeds in runs.items()}
    base = _finite(values.get(baseline, {}))
    found = []
    for label, seeds in runs.items():
        its = _finite(values[label])
        shared = [seed for seed in its if seed in base]
        beside = paired([its[s] for s in shared], [base[s] for s in shared]) if shared and label != baseline else None
        finished = [
            Finished(r, curve_by(r, metric), distribution(of_clients(r, metric).values(), lower), lower)
            for r in seeds.values()
        ]
        found.append(
            Standing(
                label,
                values[label],
                *across_seeds(list(its.values())),
                *student_interval(list(its.values())),
                beside,
                {column.name: _mean([column.of(run) for run in finished]) for column in COLUMNS},
            )
        )
    return found


def best_two(found: Sequence[Standing], lower: bool = False) -> tuple[Standing, Standing | None, Paired | None] | None:
    """The best mean, the runner-up, and their difference over shared seeds; None if there is no mean.

    Only the seeds that all of them have count.
    """
    real = [s for s in on_shared_seeds(found) if math.isfinite(s.mean)]
    order = sorted(real, key=lambda s: s.mean if lower else -s.mean)
    if not order:
        return None
    first, second = order[0], order[1] if len(order) > 1 else None
    one, other = _finite(first.values), _finite(second.values) if second else {}
    shared = [seed for seed in one if seed in other]
    beside = paired([one[s] for s in shared], [other[s] for s in shared]) if shared else None
    return first, second, beside


def on_shared_seeds(found: Sequence[Standing]) -> list[Standing]:
    """Standings with the values, mean, deviation and interval of the seeds that all of them have a value of.

    As they were if those are all seeds, or none. A standing without a value takes no seed from the others.
    """
    seeds = [_finite(s.values).keys() for s in found if _finite(s.values)]
    shared = [seed for seed in (seeds[0] if seeds else ()) if all(seed in each for each in seeds)]
    if not shared or all(len(each) == len(shared) for each in seeds):
        return list(found)
    return [_over(s, shared) if _finite(s.values) else s for s in found]


def _over(standing: Standing, seeds: Sequence[int]) -> Standing:
    values = {seed: standing.values[seed] for seed in seeds}
    (mean, deviation), (low, high) = across_seeds(list(values.values())), student_interval(list(values.values()))
    return standing._replace(values=values, mean=mean, deviation=deviation, low=low, high=high)


def _finite(values: Mapping[int, float]) -> dict[int, float]:
    return {seed: value for seed, value in values.items() if math.isfinite(value)}


def _mean(values: Sequence[float]) -> float:
    real = [value for value in values if math.isfinite(value)]
    return float(np.mean(real)) if real else math.nan
