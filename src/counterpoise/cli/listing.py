"""The registered methods, for people and for machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from counterpoise.method import Method
from counterpoise.methods import METHODS
from counterpoise.registry import Entry

__all__ = ["method_blocks", "method_list"]

GROUPS = ("weighting", "drift", "variance", "robustness", "personalisation", "server optimisers")
"""What methods do, in the order in which they are shown."""


def method_list() -> list[dict[str, Any]]:
    """Every method as plain values."""
    return [
        {
            "name": entry.name,
            "group": entry.group,
            "summary": entry.summary,
            "paper": None if entry.paper is None else vars(entry.paper),
            "options": [
                {
                    "name": p.name,
                    "takes": p.kind(),
                    "default": None if p.required else p.default,
                    "required": p.required,
                    "meaning": p.option.meaning,
                }
                for p in entry.parameters.values()
            ],
        }
        for entry in METHODS
    ]


def method_blocks() -> Iterator[RenderableType]:
    """Every method, group by group, for a terminal."""
    groups: dict[str, list[Entry[Method]]] = {}
    for entry in METHODS:
        groups.setdefault(entry.group, []).append(entry)
    for group, entries in sorted(groups.items(), key=lambda item: _place(item[0])):
        yield Text(group, style="bold underline")
        for entry in entries:
            yield Padding(_block(entry), (0, 0, 1, 2))


def _place(group: str) -> int:
    """Where a group stands in the listing; one that is new comes last."""
    return GROUPS.index(group) if group in GROUPS else len(GROUPS)


def _block(entry: Entry[Method]) -> RenderableType:
    options = Table.grid(padding=(0, 2))
    for p in entry.parameters.values():
        options.add_row(
            Text(p.name if p.required else f"{p.name} = {p.default}", style="cyan"),
            Text(f"{p.option.meaning} ({p.kind()})"),
        )
    head = Text.assemble((entry.name, "bold"), "  ", entry.summary)
    paper = [] if entry.paper is None else [Text(f"{entry.paper} {entry.paper.link}".strip(), style="dim")]
    return Group(head, *paper, Padding(options, (0, 0, 0, 2)))
