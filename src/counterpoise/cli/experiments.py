"""Presets in full, as text or as plain values for JSON."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from counterpoise.runs.experiments import read
from counterpoise.runs.paper import PaperConfig

__all__ = ["preset_blocks", "preset_list"]


def preset_list(names: Sequence[str]) -> list[dict[str, Any]]:
    """Presets as plain values."""
    return [{"name": name, **_paper(name).model_dump()} for name in names]


def preset_blocks(names: Sequence[str]) -> Iterator[RenderableType]:
    """Presets for a terminal; a small variant is listed with the preset it is made from."""
    for name in names:
        if name.removesuffix("-small") in names and name.endswith("-small"):
            continue
        paper, small = _paper(name), f"{name}-small"
        rows: list[RenderableType] = [Text(line) for line in (paper.about, paper.source) if line]
        if paper.methods:
            rows.append(Text("methods: " + ", ".join(map(_label, paper.methods))))
        if paper.vary:
            rows.append(Text("settings: " + "; ".join(f"{k} {', '.join(map(str, v))}" for k, v in paper.vary.items())))
        rows += [_numbers(paper)] if paper.numbers else []
        rows += [Text(paper.note)] if paper.note else []
        if small in names:
            rows.append(Text(f"{small}: {_paper(small).note}"))
        yield Text(name, style="bold")
        yield Padding(Group(*rows), (0, 0, 1, 2))


def _paper(name: str) -> PaperConfig:
    return PaperConfig(**read(name)[0].get("paper", {}))


def _label(method: Mapping[str, Any]) -> str:
    """A method and its options: ``fedbac (strength 0.0)``."""
    options = ", ".join(f"{key} {value}" for key, value in method.items() if key != "name")
    return f"{method['name']} ({options})" if options else str(method["name"])


def _numbers(paper: PaperConfig) -> RenderableType:
    """The published numbers; methods or settings, whichever are fewer, become the columns."""
    values = list(itertools.product(*paper.vary.values()))
    settings = [
        ", ".join(f"{k.rpartition('.')[2]} {v}" for k, v in zip(paper.vary, row, strict=True)) for row in values
    ]
    rows, columns, cells = [_label(m) for m in paper.methods], settings, paper.numbers
    if len(columns) > len(rows):
        rows, columns, cells = columns, rows, [list(column) for column in zip(*cells, strict=True)]
    places = max(len(f"{number:g}".partition(".")[2]) for row in cells for number in row)  # as printed: 81.10, not 81.1
    table = Table.grid(padding=(0, 2))
    table.add_row(Text(f"published: {paper.measure}"), *(Text(column, style="dim") for column in columns))
    for row, numbers in zip(rows, cells, strict=True):
        table.add_row(Text(f"  {row}"), *(Text(f"{number:.{places}f}", justify="right") for number in numbers))
    return table
