"""Print to the terminal: commands print only with this module's `echo` and `Console`, without control characters."""

from __future__ import annotations

import logging
import os
import re
import textwrap
from collections.abc import Iterable, Sequence

import typer
from rich.console import RenderableType

from counterpoise.display.console import Console
from counterpoise.texts import clean

__all__ = ["PIPE", "CleanFormatter", "Console", "echo", "output", "page", "print_error", "print_told"]

PIPE = 10_000
"""The width of output that goes to a pipe, so that no line is wrapped."""


_BOND = "\x1f"
"""Stands for a space at which no line may end; `clean` lets no control character of a run's through."""
_UNIT = re.compile(r"(?<=\d) (?=(?:%|s|[kMGT]?B)(?!\w))")
"""The space between a number and its unit."""
_COMMAND = re.compile(r"(?<=: )counterpoise .+")
"""A command at the end of a sentence, which can be copied only if it stays whole."""


def echo(message: object = "", nl: bool = True, err: bool = False) -> None:
    """`typer.echo`, without control characters."""
    typer.echo(clean(str(message)), nl=nl, err=err)


def output() -> Console:
    """Standard output for tables, as wide as the terminal or as COLUMNS says. In a pipe, no line is wrapped."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=PIPE)


def page(blocks: Iterable[RenderableType], console: Console) -> None:
    """Print blocks; in a terminal that is too low for them, with the user's pager."""
    if not console.is_terminal:
        for block in blocks:
            console.print(block)
        return
    with console.capture() as held:
        for block in blocks:
            console.print(block)
    if held.get().count("\n") < console.height:
        typer.echo(held.get(), nl=False)
        return
    os.environ.setdefault("LESS", "FRX")  # keep the colours, and leave the text on the screen
    typer.echo_via_pager(held.get(), color=True)


def print_told(told: Sequence[str], console: Console) -> None:
    """Print sentences, wrapped to the terminal, with numbers beside their units.

    A command or a path stays on one line, so that it can be copied.
    """
    for line in told:
        whole = line.startswith(("to finish: ", "kept in: ")) or console.width == PIPE
        console.print(line if whole else _wrapped(line, console.width), markup=False, highlight=False, soft_wrap=True)


def print_error(message: str) -> None:
    """Print a sentence on standard error, wrapped if that is a terminal. A long word or command is not cut."""
    console = Console(stderr=True)
    lines = message.split("\n")
    told = [_wrapped(line, console.width) for line in lines] if console.is_terminal else lines
    console.print("\n".join(told), markup=False, highlight=False, soft_wrap=True)


def _wrapped(line: str, width: int) -> str:
    bound = _COMMAND.sub(lambda found: found[0].replace(" ", _BOND), _UNIT.sub(_BOND, line))
    parts = textwrap.wrap(bound, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(parts).replace(_BOND, " ")


class CleanFormatter(logging.Formatter):
    """Removes control characters from log lines, which are printed too."""

    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record))
