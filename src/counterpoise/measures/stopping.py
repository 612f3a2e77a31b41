"""When a run ends before its last round: a rule on what its rounds measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

from counterpoise.errors import CounterpoiseError, brief, takes_only_its_options
from counterpoise.measures.naming import curve_by, is_share, lower_is_better, metric_words
from counterpoise.measures.records import Record

__all__ = ["When", "when"]


@dataclass(frozen=True)
class When:
    """A rule that ends a run; `when` makes it."""

    metric: str
    """The metric that decides, such as ``accuracy``."""
    above: float | None = None
    """End when the metric is above this."""
    below: float | None = None
    """End when the metric is below this."""
    patience: int | None = None
    """End when the metric has not improved in this many measurements."""
    least: float = 0.0
    """By how much more than this it must improve to count as better."""
    worse: float | None = None
    """End when the metric is worse than its best value by more than this."""

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str):
            raise CounterpoiseError(f"stop: metric must be a name such as 'accuracy', not {brief(self.metric)}.")
        given = {name: getattr(self, name) for name in ("above", "below", "patience", "worse")}
        if all(value is None for value in given.values()):
            raise CounterpoiseError("stop: say when, by at least one of above, below, patience and worse.")
        for name, value in {**given, "least": self.least}.items():
            number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
            positive = number and (value > 0 if name != "least" else value >= 0)
            whole = name != "patience" or type(value) is int
            if value is not None and not (number and (positive or name in ("above", "below")) and whole):
                kind = {"patience": "a whole number at least 1", "worse": "a number above 0", "least": "at least 0"}
                raise CounterpoiseError(
                    f"stop: {name} must be {kind.get(name, 'a finite number')}, not {brief(value)}."
                )
            if value is not None and name != "patience" and value > 1 and is_share(self.metric):
                raise CounterpoiseError(f"stop: {metric_words(self.metric)} is from 0 to 1, and {name} is {value:g}.")

    def reason(self, records: Sequence[Record]) -> str:
        """Why the run ends after the last of these rounds, in words; empty if it does not."""
        if not records or not (curve := curve_by(records, self.metric)):
            return ""
        (round, value), sign = curve[-1], -1 if lower_is_better(self.metric) else 1
        if round != records[-1].round:
            return ""
        best, reached, since = curve[0][1], curve[0][0], 0
        for number, found in curve[1:]:
            better = sign * (found - best) > self.least
            best, reached, since = (found, number, 0) if better else (best, reached, since + 1)
        now = f"{metric_words(self.metric)} is {value:.4g} in round {round}"
        if not math.isfinite(value):
            return now
        if self.above is not None and value > self.above:
            return f"{now}, above {self.above:g}"
        if self.below is not None and value < self.below:
            return f"{now}, below {self.below:g}"
        if self.worse is not None and sign * (best - value) > self.worse:
            return f"{now}, worse by more than {self.worse:g} than {best:.4g} in round {reached}"
        if self.patience is not None and since >= self.patience:
            times = f"{since} measurement" + ("s" if since > 1 else "")
            return f"{metric_words(self.metric)} has not improved in {times} since {best:.4g} in round {reached}"
        return ""


@takes_only_its_options()
def when(
    metric: str,
    *,
    above: float | None = None,
    below: float | None = None,
    patience: int | None = None,
    least: float = 0.0,
    worse: float | None = None,
) -> When:
    """A rule for `simulate(stop=...)`: the run ends after the first round in which one of its conditions holds.

    The metric is `above` or `below` a number; it has not improved by more than `least` in the last `patience`
    measurements; it is `worse` than its best value by more than this; or it is not finite. Less is better for losses
    and errors, by their names.

    >>> import counterpoise as cp
    >>> fed = cp.load("digits", partition=cp.iid(clients=5))
    >>> run = cp.simulate("fedavg", fed, model="linear", rounds=20, stop=cp.when("accuracy", above=0.5))
    >>> run.status, len(run.rounds) < 20
    ('finished', True)
    """
    return When(metric, above, below, patience, least, worse)
