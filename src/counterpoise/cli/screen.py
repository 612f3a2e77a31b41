"""The one way to the terminal: whatever is printed is cleaned of control characters here, wherever it came from.

Kept files, labels, paths and reasons may hold text that somebody else wrote, and an escape sequence in it would be obeyed by
the terminal. Commands print with `echo` and `Console` of this module only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import rich.console
import typer
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from counterpoise.texts import clean

__all__ = ["CleanFormatter", "Console", "echo"]


def echo(message: object = "", nl: bool = True, err: bool = False) -> None:
    """`typer.echo` of clean text."""
    typer.echo(clean(str(message)), nl=nl, err=err)


class Console(rich.console.Console):
    """Rich's console. Its own escape sequences are made from styles and controls; text has none."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text), segment.style)


class CleanFormatter(logging.Formatter):
    """Log lines are printed too."""

    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record))
