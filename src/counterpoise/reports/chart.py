"""What a section of the page is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import plotly.graph_objects as go

__all__ = ["Chart", "Listing", "Missing", "Note", "Section", "Table"]


@dataclass(frozen=True)
class Chart:
    """A figure, or one for every choice of its switches."""

    key: str
    title: str
    figures: Mapping[tuple[str, ...], go.Figure]
    """Keyed by one choice of every switch."""
    switches: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What each switch is for, and its choices; the first is shown first."""
    caption: str = ""

    def __post_init__(self) -> None:
        assert set(self.figures) == set(product(*self.switches.values())), "a figure for every choice"


@dataclass(frozen=True)
class Table:
    """Rows of text; the first column names the row."""

    key: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    colours: Sequence[str | None] = ()
    """The colour of each row's name."""
    caption: str = ""
    marks: Sequence[str] = ()
    """What stands beside each row's name: ``best``, for example."""


@dataclass(frozen=True)
class Missing:
    """What cannot be shown, and why."""

    title: str
    reason: str


@dataclass(frozen=True)
class Note:
    """A paragraph with its title."""

    title: str
    text: str


@dataclass(frozen=True)
class Listing:
    """Text to copy, folded away under its title unless it is `open`."""

    title: str
    text: str
    before: str = ""
    commands: Sequence[str] = ()
    open: bool = False


@dataclass(frozen=True)
class Section:
    """A heading, and what stands below it."""

    key: str
    title: str
    parts: Sequence[Chart | Table | Missing | Note | Listing]
    text: str = ""
