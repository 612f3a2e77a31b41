"""Refuse an unknown preset or method before torch is loaded, with the sentence that would come after it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from counterpoise.choices import parse_value
from counterpoise.errors import CounterpoiseError, unknown
from counterpoise.own import respelt
from counterpoise.presets import preset_names

__all__ = ["check_methods", "check_source", "methods_set"]


def check_source(source: str) -> None:
    """Refuse what is neither a preset nor a file."""
    if source not in preset_names() and not Path(source).is_file():
        from counterpoise.runs.experiments import read

        if not Path(source).exists() or Path(source).is_dir():  # a pipe can be read only once
            read(source)


def methods_set(settings: Iterable[str]) -> list[str]:
    """What settings such as ``method=fedprox(mu=0.1)`` choose as the method: the last one's value, if there is one."""
    found = [value for key, _, value in (one.partition("=") for one in settings) if key.strip() == "method"]
    return found[-1:]


def check_methods(source: str, typed: Sequence[str], methods: Iterable[str]) -> None:
    """Refuse a method that is not registered. Nothing is refused if code of the user's own may register methods."""
    names = [name for text in methods if (name := _name(text))]
    if not names or source not in preset_names() or any(":" in text for text in typed):
        return
    from counterpoise.cli.overview import grouped_methods

    known = [line.name for lines in grouped_methods().values() for line in lines]
    if strange := [name for name in names if name not in known]:
        raise unknown("method", strange[0], known, meant=respelt(strange[0]))


def _name(text: str) -> str:
    """The name in a choice such as ``fedprox(mu=0.1)``; empty if it cannot be read."""
    from counterpoise.runs.experiments import choice

    try:
        return str(choice(parse_value(text.strip()))["name"])
    except (CounterpoiseError, ValueError):
        return ""
