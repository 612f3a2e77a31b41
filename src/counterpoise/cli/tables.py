"""Numbers and tables for a terminal of any width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from counterpoise.comparisons.standing import Stand
from counterpoise.comparisons.tables import OWN_MODELS, columns, on_clients, own_columns
from counterpoise.measures import COLUMNS

__all__ = ["lines", "named_lines", "stand_table"]

_SHORT = {"Wilcoxon p": "Wilc.", **{column.head: column.short for column in COLUMNS if column.short}}
_SHORT |= {
    f"{whose} accuracy (%)": f"{whose} (%)" for whose in ("clients'", "personal")
}  # a line below says it in full


def lines(heads: Sequence[str], rows: Sequence[Sequence[Text]], right: Sequence[str], width: int) -> Iterator[Text]:
    """Aligned rows, one per line. If one is too wide, all last cells, which are paths, get a line of their own.

    If the rest is still too wide, the first cells, which are dates, join the paths.
    """
    table = [[Text(head, style="bold") for head in heads], *rows]
    wide = [max(row[place].cell_len for row in table) for place in range(len(heads) - 1)]
    fits = sum(wide) + len(wide) + max(row[-1].cell_len for row in table) <= width
    first = 0 if sum(wide) + len(wide) - 1 <= width else 1
    for row in table:
        cells = []
        for head, cell, size in [*zip(heads, row, wide, strict=False)][0 if fits else first :]:
            pad = Text(" " * (size - cell.cell_len))
            cells.append(pad + cell if head in right else cell + pad)
        line = Text(" ").join(cells)
        yield (
            Text(" ").join([line, row[-1]])
            if fits
            else Text("\n  ").join([line, Text(" ").join([*row[:first], row[-1]])])
        )


def named_lines(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[RenderableType]:
    """Aligned rows that two cells name and one, the last, explains, such as ``source``.

    If they are too wide for one line each, the names and the explanation get lines of their own, which may wrap.
    """
    table = [heads, *rows]
    wide = [max(cell_len(row[place]) for row in table) for place in range(len(heads))]
    explains = len(heads) - (heads[-1] == "source")
    fits = sum(wide) + 2 * (len(wide) - 1) <= width
    for place, row in enumerate(table):
        bold = "" if place else "bold"
        cells = [cell + " " * (size - cell_len(cell)) for cell, size in zip(row, wide, strict=True)]
        if fits:
            yield Text("  ".join(cells).rstrip(), style=bold)
            continue
        yield Text(": ".join(row[:2]), style=bold)
        values = "  ".join(cells[2:explains]).rstrip()
        for line in filter(None, [values, *row[explains:]]):
            yield Padding(Text(line, style=bold if line is values else "dim"), (0, 0, 0, 2), expand=False)


def stand_table(found: Stand, first: str = "method", width: int = 10_000) -> RenderableType:
    """The table that compares groups, and below it the one for personal models if there are any."""
    whole = _table(*columns(found), first, width)
    if found.own:
        return Group(whole, Text(f"\n{OWN_MODELS}"), _table(*own_columns(found), first, width))
    told = on_clients(found.metric)
    return Group(whole, Text(told)) if told else whole


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], first: str, width: int) -> RenderableType:
    """A line for each row; if that is too wide, names get a line of their own, and then the last columns are left out."""
    shown = [[first, *(_SHORT.get(head, head) for head in heads[1:])], *rows]
    sizes = [max(cell_len(row[place]) for row in shown) for place in range(len(heads))]
    if sum(sizes) + len(sizes) - 1 <= width:
        return Group(*(_line(row, sizes, not place) for place, row in enumerate(shown)))
    kept = len(sizes)
    while kept > 2 and sum(sizes[1:kept]) + kept > width:
        kept -= 1
    lines = []
    for place, row in enumerate(shown):
        lines.append(Text(row[0], style="" if place else "bold", overflow="fold"))
        lines.append(Text("  ") + _line(row[1:kept], sizes[1:kept], not place, named=False))
    left = [Text(f"left out for want of width: {', '.join(heads[kept:])}", style="dim")] if kept < len(sizes) else []
    return Group(*lines, *left)


def _line(cells: Sequence[str], sizes: Sequence[int], bold: bool, named: bool = True) -> Text:
    """Cells aligned right, but for a name in front."""
    line = Text(style="bold" if bold else "")
    for place, (cell, size) in enumerate(zip(cells, sizes, strict=True)):
        pad = " " * (size - cell_len(cell))
        text = cell + pad if named and not place else pad + cell
        line.append(" " * bool(place)).append(text, style="red" if cell == "failed" else "")
    return line
