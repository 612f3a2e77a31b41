"""The short tables of methods and presets: a name and a sentence a line. Nothing here loads torch or pydantic."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.text import Text

import counterpoise
from counterpoise.runs.experiments import read

__all__ = ["Line", "about", "grouped_methods", "grouped_presets", "short_table"]

GROUPS = {
    "weighting": "how much each client counts",
    "drift": "clients with unlike data pull apart",
    "variance": "few clients take part in a round",
    "drift and variance": "both at once",
    "robustness": "some updates are broken or hostile",
    "personalisation": "a model for each client",
    "server optimisers": "the server's step",
    "trust": "clients may lie about themselves",
    "parts": "for use around any method, as in memory:fedprox",
}
"""Groups of methods, in the order in which they are listed, and what each is about."""
_FIRST_STEPS = "first steps"
_NARROWEST = 40
"""A sentence that would get fewer columns than this beside its name goes below it."""


class Line(NamedTuple):
    """A line of a short table."""

    name: str
    sentence: str


def grouped_methods() -> dict[str, list[Line]]:
    """Every registered method by its group, read from the source: importing it would load torch, which takes seconds."""
    found: dict[str, list[Line]] = {group: [] for group in GROUPS}
    for file in sorted((Path(counterpoise.__file__).parent / "methods").rglob("*.py")):
        if "@METHODS.register(" in (text := file.read_text(encoding="utf-8")):
            for group, line in _registered(ast.parse(text)):
                found.setdefault(group, []).append(line)
    return {group: sorted(lines) for group, lines in found.items() if lines}


def _registered(module: ast.Module) -> Iterator[tuple[str, Line]]:
    for made in (statement for statement in module.body if isinstance(statement, ast.FunctionDef)):
        for call in made.decorator_list:
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "METHODS.register":
                group = next((ast.literal_eval(word.value) for word in call.keywords if word.arg == "group"), "")
                sentence = (ast.get_docstring(made) or "").partition("\n")[0]
                yield group, Line(ast.literal_eval(call.args[0]), sentence)


def grouped_presets(names: Iterable[str], about: Callable[[str], str]) -> dict[str, list[Line]]:
    """Presets by their folders; a small variant is not listed beside the preset that it is made from."""
    found: dict[str, list[Line]] = {_FIRST_STEPS: []}
    listed = [*names]
    for name in listed:
        if not (name.endswith("-small") and name.removesuffix("-small") in listed):
            found.setdefault(name.rpartition("/")[0] or _FIRST_STEPS, []).append(Line(name, about(name)))
    return {group: lines for group, lines in found.items() if lines}


def about(name: str) -> str:
    """What a preset is, in a sentence."""
    return str(read(name)[0].get("paper", {}).get("about", ""))


def short_table(groups: Mapping[str, Sequence[Line]], width: int) -> Iterator[Text]:
    """Names and sentences, group by group. A group's sentences begin in one column, or below the names if it is narrow."""
    for group, lines in groups.items():
        about = f"  {GROUPS[group]}" if group in GROUPS else ""
        yield Text.assemble((group, "bold underline"), (about, "dim"))
        column = 4 + max(len(line.name) for line in lines)
        beside = width - column >= _NARROWEST
        indent = " " * (column if beside else 4)
        for name, sentence in lines:
            told = textwrap.wrap(sentence, width - len(indent), break_on_hyphens=False)
            between = " " * (column - 2 - len(name)) if beside else f"\n{indent}"
            yield Text.assemble("  ", (name, "bold"), between, f"\n{indent}".join(told))
        yield Text()
