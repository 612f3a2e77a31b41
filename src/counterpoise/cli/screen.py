"""Print to the terminal: commands print only with this module's `echo` and `Console`, without control characters."""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
from collections.abc import Iterator

import typer

from counterpoise.display.console import Console
from counterpoise.loading import noting_torch
from counterpoise.texts import clean

__all__ = ["CleanFormatter", "Console", "echo", "loading"]


def echo(message: object = "", nl: bool = True, err: bool = False) -> None:
    """`typer.echo`, without control characters."""
    typer.echo(clean(str(message)), nl=nl, err=err)


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
    gc.disable()
    try:
        with noting_torch():
            yield
    finally:
        gc.freeze()
        gc.enable()
