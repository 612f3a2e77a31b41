"""Print to the terminal. All output goes through this module, which removes control characters from it.

Kept files, labels, paths and reasons may contain text that somebody else wrote, and a terminal would obey an escape
sequence in it. So commands print only with this module's `echo` and `Console`.
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
    """`typer.echo`, without control characters."""
    typer.echo(clean(str(message)), nl=nl, err=err)


class Console(rich.console.Console):
    """Rich's console. Styles and controls still become escape sequences; text cannot contain any."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text), segment.style)


class CleanFormatter(logging.Formatter):
    """Removes control characters from log lines, which are printed too."""

    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record))
