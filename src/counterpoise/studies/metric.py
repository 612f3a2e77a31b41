"""Which number stands for a run: what is measured, and at which of its evaluations."""

from __future__ import annotations

import re
from typing import NamedTuple

from counterpoise.errors import CounterpoiseError
from counterpoise.measures import Curve, best, last, rounds_to, volatility
from counterpoise.studies.measuring import lower_is_better, scale_of

__all__ = ["Metric", "parse_metric"]

_FORMS = "last, best, mean, volatility, mean of the last 4, volatility of the first 4, or rounds to 81.4"


class Metric(NamedTuple):
    """What one number of a run is."""

    measure: str
    """accuracy, loss or any other metric on the test set, or as `curve_of` says"""
    rule: str
    """last, best, mean, volatility or rounds"""
    number: float = 0.0
    """For mean and volatility: over how many evaluations, 0 for all. For rounds: the target in points."""
    first: bool = False
    """Whether mean and volatility are of the first evaluations rather than of the last."""

    @property
    def lower(self) -> bool:
        """Whether a lower value is better."""
        return lower_is_better(self.measure) or self.rule in ("rounds", "volatility")

    @property
    def scale(self) -> float:
        """What a value is multiplied with: 100 for a share, so that it is in points."""
        return scale_of(self.measure)

    @property
    def in_points(self) -> bool:
        """Whether it is a share in points, to which the rules of verdicts apply."""
        return self.scale == 100.0 and self.rule not in ("rounds", "volatility")

    @property
    def words(self) -> str:
        """The metric in words."""
        if self.rule == "rounds":
            return f"rounds to {self.measure} {self.number:g}"
        if self.rule in ("last", "best"):
            return f"{self.measure}, {self.rule} round"
        some = f"the {'first' if self.first else 'last'} {self.number:g}" if self.number else "all"
        return f"{self.measure}, {self.rule} of {some} evaluations"

    def value(self, curve: Curve) -> float:
        """The number that stands for a run with this curve; NaN if there is none."""
        scale = self.scale
        scaled = [(round, value * scale) for round, value in curve]
        if self.rule == "rounds":
            found = rounds_to(scaled, self.number, lower_is_better(self.measure))
            return float("nan") if found is None else float(found)
        if self.rule == "best":
            return best(scaled, self.lower).value
        if self.rule == "last" or not scaled:
            return last(scaled)
        count = int(self.number) or len(scaled)
        part = scaled[:count] if self.first else scaled[-count:]
        return volatility(part) if self.rule == "volatility" else sum(value for _, value in part) / len(part)

    def shown(self, value: float, sign: str = "") -> str:
        """A value for a table: two decimals of points, four digits of anything else. With ``+``, a plus is shown too."""
        return format(value, f"{sign}.2f" if self.scale == 100.0 and self.rule != "rounds" else f"{sign}.4g")


def parse_metric(text: str, measure: str = "accuracy") -> Metric:
    """Read a metric as a study's file has it.

    >>> parse_metric("mean of the last 4")
    Metric(measure='accuracy', rule='mean', number=4.0, first=False)
    """
    if text in ("last", "best"):
        return Metric(measure, text)
    if found := re.fullmatch(r"(mean|volatility)(?: of the (first|last) ([1-9]\d*))?", text):
        return Metric(measure, found[1], float(found[3] or 0), found[2] == "first")
    if found := re.fullmatch(r"rounds to (\d+(?:\.\d+)?)", text):
        return Metric(measure, "rounds", float(found[1]))
    raise CounterpoiseError(f"metric must be {_FORMS}, not {text!r}.")
