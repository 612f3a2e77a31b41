"""Print to the terminal. All output goes through this module, which removes control characters from it.

Kept files, labels, paths and reasons may contain text that somebody else wrote, and a terminal would obey an escape
sequence in it. So commands print only with this module's `echo` and `Console`.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
from collections.abc import Iterable, Iterator

import rich.console
import typer
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from counterpoise.texts import clean

__all__ = ["CleanFormatter", "Console", "echo", "loading"]


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


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Load torch quickly, and meanwhile say so on a terminal; in a pipe and on ranks, say nothing.

    The modules loaded here stay until the end, so the garbage collector need not look through their many objects: not
    while they are loaded, not in the rounds, and not at the end.
    """
    if "torch" in sys.modules:
        yield
        return
    console = Console(stderr=True)
    shown = console.is_terminal and "RANK" not in os.environ
    gc.disable()
    try:
        with console.status("loading torch ...") if shown else contextlib.nullcontext():
            yield
    finally:
        gc.freeze()
        gc.enable()
