"""Experiments as files: presets and TOML files, and changes to their settings.

The values are not checked here; `counterpoise.runs.config.parse` does that.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from counterpoise.choices import parse_choice, parse_value
from counterpoise.errors import CounterpoiseError, brief, like_named, no_file, unknown
from counterpoise.own import allow
from counterpoise.presets import preset_names
from counterpoise.runs.contents import METRICS
from counterpoise.texts import parse_toml, read_text

__all__ = ["assign", "choice", "override", "preset_names", "read"]


_PATHS = (("data",), ("data", "name"), ("data", "partition", "path"), ("cohort", "rounds"))
"""Settings that may be paths. In a file they are relative to its folder; so is the user's own code."""


def choice(value: Any) -> Any:
    """A named choice with options: ``"fedprox"``, ``"fedprox(mu=0.1)"`` or ``{name = "fedprox", mu = 0.1}``."""
    if isinstance(value, str):
        return parse_choice(value) if "(" in value else {"name": value}
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return dict(value)
    raise ValueError('must be a name, or a table with a name: { name = "...", option = ... }')


def read(source: str, typed: Iterable[str] | None = None) -> tuple[dict[str, Any], str]:
    """Read a preset or a TOML file: its values and its name.

    `typed` is what else the user typed, such as settings. If it is given, code of the user's own may be imported later:
    code that `typed` names from the current folder, code that the file names from the file's folder, unless that is a
    run's folder.

    ``like = "fedbac/figure-3"`` in a file takes all settings from that preset that the file does not set itself, and
    ``like = "base.toml"`` takes them from a file in the same folder. Paths of data are relative to that folder, too.
    """
    values, name = _read(source)
    if typed is not None:
        allow(list(typed), Path())
        _allow_file(source, values)
    here, seen = source, {Path(source).resolve()}
    while "like" in values:
        like = values.pop("like")
        base = _base(here, like) if isinstance(like, str) else ""
        if not base or Path(base).resolve() in seen:
            raise CounterpoiseError(f"{here}: like must name another preset or file, not {brief(like)}.")
        here = base
        seen.add(Path(here).resolve())
        below = _read(here)[0]
        if typed is not None:
            _allow_file(here, below)
        values = _over(below, values)
    return values, name


def _base(source: str, like: str) -> str:
    """What `like` in the file `source` names: a preset, or the path of a file in the same folder."""
    if like in preset_names():
        return like
    beside = Path(source).parent / like
    if like.endswith(".toml") or beside.is_file():
        return str(beside)
    raise unknown("preset", like, preset_names(), "(a file's name ends in .toml)", listing="counterpoise presets")


def _allow_file(source: str, values: Mapping[str, Any]) -> None:
    """Let the names in a user's file be imported from its folder; a run's folder may come from anybody.

    Users do not write digests and fingerprints, so a file that holds them was copied from a run's folder.
    """
    folder, data = Path(source).parent, values.get("data")
    of_a_run = "code" in values or (isinstance(data, Mapping) and "fingerprint" in data) or (folder / METRICS).exists()
    if source not in preset_names() and not of_a_run:
        allow(values, folder)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables; values in `above` win. A choice with another name keeps none of the old one's options."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            another = key != "data" and value.get("name") not in (None, old.get("name"))
            value = value if another else _over(old, value)
        merged[key] = value
    return merged


def _read(source: str) -> tuple[dict[str, Any], str]:
    if source in preset_names():
        text = resources.files("counterpoise.presets").joinpath(f"{source}.toml").read_text(encoding="utf-8")
        return parse_toml(text, source), source
    path = Path(source)
    if source.endswith(".toml") or path.is_file():
        try:
            text = read_text(path)
        except (FileNotFoundError, NotADirectoryError):
            raise no_file(source) from None
        values = parse_toml(text, source)
        for place in _PATHS:
            values = _beside(values, place, path.parent)
        return values, path.stem
    if path.is_dir():
        raise CounterpoiseError(
            f"{source} is a folder. Give a preset's name (counterpoise presets lists them) or a TOML file; a run in a "
            f"folder goes on with: counterpoise resume {shlex.quote(source)}"
        )
    where, near = "(a file's name ends in .toml)", like_named(source, ".toml")
    raise unknown("preset", source, preset_names(), where, near, listing="counterpoise presets")


def _beside(values: dict[str, Any], place: Sequence[str], folder: Path) -> dict[str, Any]:
    """Make the path at `place` relative to the file's folder, unless it exists only in the current folder."""
    key, *more = place
    inner = values.get(key)
    if more and isinstance(inner, Mapping):
        return {**values, key: _beside(dict(inner), more, folder)}
    if not isinstance(inner, str) or not inner or os.path.isabs(os.path.expanduser(inner)):
        return values
    beside, here = os.path.normpath(folder / inner), os.path.exists(inner)
    written_as_path = bool(Path(inner).suffix) or Path(inner).name != inner
    if not os.path.exists(beside) and (here or not written_as_path or ":" in inner):
        return values
    from counterpoise.federation.catalogue import DATASETS  # most files name no path

    return values if inner in DATASETS else {**values, key: beside}


def override(values: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Apply ``key=value`` settings to values; dots reach into tables.

    A choice that is replaced loses its options; one of these settings that would be lost is refused.

    >>> override({"method": {"name": "fedprox", "mu": 1.0}}, ["method=fedavgm(beta=0.5)", "local.epochs=3"])
    {'method': {'name': 'fedavgm', 'beta': 0.5}, 'local': {'epochs': 3}}
    >>> override({"data": {"name": "digits"}}, ["data.heldout=0.1", "data=mnist"])
    {'data': {'name': 'mnist', 'heldout': 0.1}}
    """
    result, keys = dict(values), list[str]()
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not all(part.strip() for part in key.split(".")):
            raise CounterpoiseError(f"--set takes key=value, such as local.epochs=3, not {brief(setting)}.")
        if lost := [one for one in keys if one.startswith(f"{key}.") and key != "data"]:
            raise CounterpoiseError(f"{brief(setting)} would drop {lost[0]}, which is set before it. Set {key} first.")
        keys.append(key)
        result = assign(result, key, parse_value(text.strip()))
    return result


def assign(values: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of the values with one setting changed."""
    result: dict[str, Any] = {k: dict(v) if isinstance(v, Mapping) else v for k, v in values.items()}
    path = [part.strip() for part in key.split(".")]
    table = result
    for part in path[:-1]:
        inner = table.get(part, {})
        if isinstance(inner, str):
            inner = {"name": inner} if part == "data" else choice(inner)
        table[part] = dict(inner) if isinstance(inner, Mapping) else {}
        table = table[part]
    before = table.get(path[-1])
    named = isinstance(value, str) and isinstance(before, Mapping) and "name" in before
    if named and path == ["data"]:
        table[path[-1]] = {**before, "name": value}  # type: ignore[dict-item]
    else:
        table[path[-1]] = choice(value) if named else value
    return result
