"""A study as plain values: cells, what was published for them, averages over cells, and claims."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from counterpoise.studies.metric import Metric

__all__ = ["Average", "Cell", "Claim", "Entry", "Published", "Study"]


@dataclass(frozen=True)
class Entry:
    """A method of a cell."""

    label: str
    method: str
    """Its name, with options in brackets."""
    settings: Mapping[str, Any]
    """Settings that apply to it alone, with dotted keys."""


@dataclass(frozen=True)
class Published:
    """What was published for a method in a cell."""

    value: float
    to: float | None
    """The upper end of a printed range that begins at the value."""
    spread: float | None
    seeds: int
    """1 if it is unknown, or if the published runs share a partition."""
    source: str
    kind: str

    @property
    def middle(self) -> float:
        """The value, or the middle of the range."""
        return self.value if self.to is None else (self.value + self.to) / 2

    @property
    def reach(self) -> float:
        """How far the spread or the range reaches either side of the middle; NaN without either."""
        if self.to is not None:
            return (self.to - self.value) / 2
        return math.nan if self.spread is None else self.spread


@dataclass(frozen=True)
class Cell:
    """An experiment of a study, or another view of the runs of one."""

    name: str
    slug: str
    """The name of its folder."""
    like: str
    """A preset, or a file."""
    settings: tuple[str, ...]
    """As ``--set`` takes them."""
    entries: tuple[Entry, ...]
    seeds: int
    rounds: int | None
    metric: Metric
    published: Mapping[str, Published]
    """By the method's label."""
    cannot: str
    """Why it cannot be run; empty if it can."""
    note: str
    chance: float = 0.0
    """In points: a run whose last accuracy is below this ended at chance."""
    runs_of: str = ""
    """The cell whose runs it shows by another measure or metric; empty if the runs are its own."""


@dataclass(frozen=True)
class Average:
    """Published values that are averages over cells."""

    name: str
    cells: tuple[str, ...]
    published: Mapping[str, Published]
    """By the method's label."""
    note: str


@dataclass(frozen=True)
class Claim:
    """The claim that one method beats another, or is like it, on average over cells."""

    better: str
    than: str
    cells: tuple[str, ...]
    than_cells: tuple[str, ...]
    """The cells of the second method."""
    smaller_in: tuple[str, ...]
    """Cells in which the lead is said to be smaller; empty for a claim about the lead itself."""
    metric: str
    """The metric of this claim; empty for that of its cells."""
    by: float | None
    within: float | None
    """Of a claim that both are alike: by how much they may differ."""
    source: str
    note: str
    named: str = ""
    """Its cells as the file names them."""

    @property
    def needs(self) -> frozenset[tuple[str, str]]:
        """The cells and methods without which it cannot be judged."""
        better = ((cell, self.better) for cell in (*self.cells, *self.smaller_in))
        return frozenset((*better, *((cell, self.than) for cell in (*self.than_cells, *self.smaller_in))))


@dataclass(frozen=True)
class Study:
    """A whole study."""

    name: str
    title: str
    about: str
    cells: tuple[Cell, ...]
    averages: tuple[Average, ...]
    claims: tuple[Claim, ...]
    values: Mapping[str, Any]
    """As its file has them."""
