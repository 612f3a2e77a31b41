"""Parts and methods at a glance: short texts, and pictures for a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from counterpoise.hooks import CLIENT_HOOKS, SERVER_HOOKS
from counterpoise.sketch import boxes, card, table
from counterpoise.texts import clean

__all__ = ["method_html", "method_text", "part_html", "part_text"]


class _Part(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def numbers(self) -> Mapping[str, float]: ...


def part_text(part: _Part) -> str:
    """The part's name, its numbers and the names of its hooks."""
    hooks = [*_hooks(part, CLIENT_HOOKS), *_hooks(part, SERVER_HOOKS)]
    return f"Part({_named(part)}: {', '.join(hooks) or 'no hooks'})"


def part_html(part: _Part) -> str:
    """All hooks in the order in which they are called, with those that the part has."""
    sides = {"on a client": CLIENT_HOOKS, "on the server": SERVER_HOOKS}
    columns = [(side, [(hook, getattr(part, hook) is not None) for hook in hooks]) for side, hooks in sides.items()]
    rows = [(side, hook + hooks[hook]) for side, hooks in sides.items() for hook in _hooks(part, hooks)]
    return card(f"part {_named(part)}", boxes(columns), table(rows, ("", "is called as") if rows else ()))


def method_text(name: str, slots: Mapping[str, Sequence[_Part]]) -> str:
    """The method's name, and the parts in its slots."""
    filled = [f"{slot} {' + '.join(map(_named, chain))}" for slot, chain in slots.items() if chain]
    return f"Method({clean(name)}: {', '.join(filled) or 'no parts'})"


def method_html(name: str, slots: Mapping[str, Sequence[_Part]]) -> str:
    """The slots from left to right with their parts, and what each part does where."""
    rows = [
        (slot, _named(part), ", ".join(_hooks(part, CLIENT_HOOKS)), ", ".join(_hooks(part, SERVER_HOOKS)))
        for slot, chain in slots.items()
        for part in chain
    ]
    picture = boxes([(slot, [(part.name, True) for part in chain]) for slot, chain in slots.items()])
    return card(f"method {clean(name)}", picture, table(rows, ("slot", "part", "on a client", "on the server")))


def _named(part: _Part) -> str:
    numbers = ", ".join(f"{name}={number:g}" for name, number in part.numbers.items())
    return clean(f"{part.name}({numbers})" if numbers else part.name)


def _hooks(part: Any, among: Mapping[str, str]) -> list[str]:
    return [hook for hook in among if getattr(part, hook) is not None]
