"""Numbers and tables for a terminal of any width."""

from __future__ import annotations

import math

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from counterpoise.runs.standing import Stand, columns

__all__ = ["clock", "number", "stand_table"]

_SHORT = {"volatility": "vol.", "seconds": "sec.", "Wilcoxon p": "Wilc."}


def number(value: float, metric: str) -> str:
    """A metric for a narrow column; nothing where it is not known."""
    if math.isnan(value):
        return ""
    return f"{value:.4g}" if metric == "loss" else f"{value:.1%}"


def clock(seconds: float) -> str:
    """A time left; nothing where it is not known.

    >>> clock(71), clock(3700)
    ('1:11', '1:01:40')
    """
    if not math.isfinite(seconds):
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def stand_table(found: Stand, first: str = "method") -> RenderableType:
    """How groups stand to each other."""
    heads, rows = columns(found)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", collapse_padding=True)
    for place, head in enumerate([first, *heads[1:]]):
        table.add_column(
            _SHORT.get(head, head), justify="right" if place else "left", overflow="fold", no_wrap=place > 2
        )
    for row in rows:
        failed = row[1] == "failed"
        table.add_row(*(Text(cell, style="red" if failed and place == 1 else "") for place, cell in enumerate(row)))
    return table
