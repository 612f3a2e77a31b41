"""Numbers and tables for a terminal of any width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from counterpoise.comparisons.standing import Stand
from counterpoise.comparisons.tables import OWN_MODELS, columns, on_clients, own_columns
from counterpoise.measures import COLUMNS

__all__ = ["lines", "stand_table"]

_SHORT = {"Wilcoxon p": "Wilc.", **{column.head: column.short for column in COLUMNS if column.short}}
_SHORT |= {
    f"{whose} accuracy (%)": f"{whose} (%)" for whose in ("clients'", "personal")
}  # a line below says it in full


def lines(heads: Sequence[str], rows: Sequence[Sequence[Text]], right: Sequence[str], width: int) -> Iterator[Text]:
    """Aligned rows, one per line. If one is too wide, all last cells, which are paths, get a line of their own."""
    table = [[Text(head, style="bold") for head in heads], *rows]
    wide = [max(row[place].cell_len for row in table) for place in range(len(heads) - 1)]
    fits = sum(wide) + len(wide) + max(row[-1].cell_len for row in table) <= width
    for row in table:
        line = Text()
        for head, cell, size in zip(heads, row, wide, strict=False):
            pad = " " * (size - cell.cell_len)
            line.append_text(Text(pad) + cell if head in right else cell + Text(pad)).append(" ")
        yield line + row[-1] if fits else Text("\n  ").join([line, row[-1]])


def stand_table(found: Stand, first: str = "method") -> RenderableType:
    """The table that compares groups, and below it the one for personal models if there are any."""
    whole = _table(*columns(found), first)
    if found.own:
        return Group(whole, Text(f"\n{OWN_MODELS}"), _table(*own_columns(found), first))
    told = on_clients(found.metric)
    return Group(whole, Text(told)) if told else whole


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], first: str) -> Table:
    spread = list(heads).index("p")  # columns before it may be wrapped
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", collapse_padding=True)
    for place, head in enumerate([first, *heads[1:]]):
        table.add_column(
            _SHORT.get(head, head), justify="right" if place else "left", overflow="fold", no_wrap=place >= spread
        )
    for row in rows:
        table.add_row(*(Text(cell, style="red" if cell == "failed" else "") for cell in row))
    return table
