"""Which number stands for a run: what is measured, and at which of its evaluations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.errors import CounterpoiseError
from counterpoise.measures import Curve, best, couplings, curve, last, own_curve, rounds_to

__all__ = ["Metric", "curve_of", "parse_metric"]

_FORMS = "last, best, mean, mean of the last 4, or rounds to 81.4"
_PERSONAL, _COUPLING = "personal ", "coupling of "


class Metric(NamedTuple):
    """What one number of a run is."""

    measure: str
    """accuracy, loss or any other metric on the test set, or as `curve_of` says"""
    rule: str
    """last, best, mean or rounds"""
    number: float = 0.0
    """For the mean: of so many of the last evaluations, 0 for all. For rounds: to this many points."""

    @property
    def lower(self) -> bool:
        """Whether a lower value is better."""
        return self.measure.endswith("loss") or self.rule == "rounds"

    @property
    def scale(self) -> float:
        """What a value is multiplied with, so that it is in points."""
        return 1.0 if self.measure.endswith("loss") else 100.0

    @property
    def in_points(self) -> bool:
        """Whether it is a share in points, to which the rules of verdicts apply."""
        return self.scale == 100.0 and self.rule != "rounds"

    @property
    def words(self) -> str:
        """The metric in words."""
        if self.rule == "rounds":
            return f"rounds to {self.measure} {self.number:g}"
        some = f" of the last {self.number:g} evaluations" if self.number else " of all evaluations"
        return f"{self.measure}, " + {"last": "last round", "best": "best round", "mean": f"mean{some}"}[self.rule]

    def value(self, curve: Curve) -> float:
        """The number that stands for a run with this curve; NaN if there is none."""
        scaled = [(round, value * self.scale) for round, value in curve]
        if self.rule == "rounds":
            found = rounds_to(scaled, self.number, self.measure.endswith("loss"))
            return float("nan") if found is None else float(found)
        if self.rule == "best":
            return best(scaled, self.lower).value
        if self.rule == "last" or not scaled:
            return last(scaled)
        values = [value for _, value in scaled[-int(self.number) :]]  # -0: all of them
        return sum(values) / len(values)


def parse_metric(text: str, measure: str = "accuracy") -> Metric:
    """Read a metric as a study's file has it.

    >>> parse_metric("mean of the last 4")
    Metric(measure='accuracy', rule='mean', number=4.0)
    """
    if text in ("last", "best", "mean"):
        return Metric(measure, text)
    if found := re.fullmatch(r"mean of the last ([1-9]\d*)", text):
        return Metric(measure, "mean", float(found[1]))
    if found := re.fullmatch(r"rounds to (\d+(?:\.\d+)?)", text):
        return Metric(measure, "rounds", float(found[1]))
    raise CounterpoiseError(f"metric must be {_FORMS}, not {text!r}.")


def curve_of(records: Sequence[RoundRecord], measure: str) -> Curve:
    """A measure by round.

    ``personal accuracy`` is the mean over clients of the model that each would use, and ``coupling of weight`` the rank
    correlation of a weight or note with the clients' accuracy. Everything else is measured on the test set.
    """
    if measure.startswith(_PERSONAL):
        return own_curve(records, measure.removeprefix(_PERSONAL))
    if measure.startswith(_COUPLING):
        return [pair for pair in couplings(records, measure.removeprefix(_COUPLING)) if pair[1] == pair[1]]
    return curve(records, measure)
