"""List the registered methods, as text or as plain values for JSON."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from counterpoise.cli.overview import GROUPS
from counterpoise.method import Method
from counterpoise.methods import METHODS
from counterpoise.options import Parameter
from counterpoise.registry import Entry
from counterpoise.runs.costs import Costs, costs

__all__ = ["method_blocks", "method_facts", "method_list", "method_page"]


def method_list() -> list[dict[str, Any]]:
    """Every method as plain values."""
    return [_plain(entry) for entry in METHODS]


def method_facts(name: str) -> dict[str, Any]:
    """One method and its costs as plain values."""
    found = _costs(METHODS[name])
    return {**_plain(METHODS[name]), "costs": None if found is None else found._asdict()}


def _plain(entry: Entry[Method]) -> dict[str, Any]:
    return {
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
                "inner": p.option.inner,
            }
            for p in entry.parameters.values()
        ],
    }


def _costs(entry: Entry[Method]) -> Costs | None:
    return None if any(p.required for p in entry.parameters.values()) else costs(entry.factory())


def method_page(name: str) -> Iterator[RenderableType]:
    """One method for a terminal: what it does, its paper, its options and its costs."""
    entry = METHODS[name]
    yield _block(entry, whole=True)
    found = _costs(entry)
    if found is None:
        return
    table = Table.grid(padding=(0, 2))
    for what, models in (
        ("sent by a client in a round", found.up),
        ("sent to a client in a round", found.down),
        ("kept on the server beside the model", found.server),
        ("kept on the server for each client seen", found.record),
        ("kept on each client", found.client),
    ):
        table.add_row(Text(what), Text(_models(models), justify="right"))
    yield Text("\ncosts with these defaults, in sizes of the model", style="bold")
    yield Padding(table, (0, 0, 0, 2))
    if found.when_lost:
        yield Text(f"\nIf a client loses what it keeps: {'; '.join(found.when_lost)}.")


def _models(count: float) -> str:
    """A cost in sizes of the model; below a hundredth it is just ``numbers``."""
    return (
        "nothing" if count == 0 else "numbers" if count < 0.01 else f"{count:.2f}".removesuffix("0").removesuffix(".0")
    )


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
    """A group's place in the listing; unknown groups come last."""
    return [*GROUPS].index(group) if group in GROUPS else len(GROUPS)


def _block(entry: Entry[Method], whole: bool = False) -> RenderableType:
    inner = [p for p in entry.parameters.values() if p.option.inner]
    head = Text.assemble((entry.name, "bold"), "  ", entry.summary)
    paper = [] if entry.paper is None else [Text(f"{entry.paper} {entry.paper.link}".strip(), style="dim")]
    rest = inspect.cleandoc(inspect.unwrap(entry.factory).__doc__ or "").partition("\n")[2].strip() if whole else ""
    rest = re.sub(r"(?<!\n)\n(?!\n)", " ", rest).replace("`", "")  # the terminal wraps lines, and has no type for code
    parts: list[RenderableType] = [head, *paper, *([Text(f"\n{rest}\n")] if rest else [])]
    parts.append(_options([p for p in entry.parameters.values() if not p.option.inner]))
    if inner and whole:
        parts += [Text("\nnumbers inside its parts, which nobody needs to set", style="bold"), _options(inner)]
    elif inner:
        parts.append(
            Text(f"  and {len(inner)} numbers inside its parts: counterpoise methods {entry.name}", style="dim")
        )
    return Group(*parts)


def _options(some: Sequence[Parameter]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for p in some:
        table.add_row(Text(p.name if p.required else f"{p.name} = {p.default}", style="cyan"), Text(p.about()))
    return Padding(table, (0, 0, 0, 2))
