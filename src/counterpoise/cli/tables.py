"""Numbers and tables for a terminal of any width."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from counterpoise.runs.standing import OWN_MODELS, Stand, columns, own_columns

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
    """How groups stand to each other, and below it by clients' own models if there are any."""
    whole = _table(*columns(found), first)
    return Group(whole, Text(f"\n{OWN_MODELS}"), _table(*own_columns(found), first)) if found.own else whole


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], first: str) -> Table:
    spread = list(heads).index("p")  # what stands before it may be broken
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", collapse_padding=True)
    for place, head in enumerate([first, *heads[1:]]):
        table.add_column(
            _SHORT.get(head, head), justify="right" if place else "left", overflow="fold", no_wrap=place >= spread
        )
    for row in rows:
        table.add_row(*(Text(cell, style="red" if cell == "failed" else "") for cell in row))
    return table
