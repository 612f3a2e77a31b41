"""Whether the user's own code that a kept configuration names may be imported, and whether it has changed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from counterpoise.errors import CounterpoiseError
from counterpoise.own import allow, digests, folder_of, own_part
from counterpoise.runs.contents import METRICS

__all__ = ["check_named", "check_trusted", "check_unchanged", "own_names"]


def own_names(values: Any) -> list[str]:
    """The code of a user's own that the choices in a configuration name.

    >>> own_names({"model": {"name": "my_project.models:net"}, "method": {"name": "feddua:fedavg"}})
    ['my_project.models:net']
    >>> own_names({"data": {"name": "my_project.data:make", "options": {"name": "some.text:here"}}})
    ['my_project.data:make']
    """
    return sorted({part for name in _names(values) if (part := own_part(name))})


_TEXTS = (("data", "columns"), ("own",), ("code",), ("objects",))
"""Tables of plain text, which name nothing that could be imported."""


def _names(values: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The names of all choices. Options may be choices, too: what looks like one counts as one."""
    if isinstance(values, list):
        for value in values:
            yield from _names(value, path)
    elif isinstance(values, Mapping) and path not in _TEXTS:
        if isinstance(name := values.get("name"), str) and path != ("data", "options"):  # there, an option's value
            yield name
        for key, value in values.items():
            yield from _names(value, (*path, key))


def check_trusted(values: Any, code: Mapping[str, str], where: str, trust: Path | None = None) -> None:
    """Refuse settings from a folder that name code which the user has neither named nor trusts.

    `code` are the digests in the folder: code that is trusted must be what it was. Nothing is imported here.
    """
    names = own_names(values)
    if trust is not None:
        if not trust.is_dir():
            raise CounterpoiseError(f"trust must be the folder that your own code is in; there is no folder {trust}.")
        allow(names, trust)
    if unnamed := [name for name in names if folder_of(name) is None]:
        raise CounterpoiseError(
            f"{where} names code of somebody's own: {', '.join(unnamed)}. It was not imported. If you trust it, give "
            "the folder that it is in: --trust FOLDER (in Python, trust=...), or repeat the command that began it."
        )
    check_unchanged(names, code, where)


def check_named(values: Any, source: str) -> None:
    """Refuse a file that comes from a run's folder and names code that the user has not named."""
    if unnamed := [name for name in own_names(values) if folder_of(name) is None]:
        tops = dict.fromkeys(name.partition(":")[0].partition(".")[0] for name in unnamed)
        folder = Path(source).parent
        run = shlex.quote(str(folder)) if (folder / METRICS).exists() else "RUN"
        raise CounterpoiseError(
            f"{source} comes from a run's folder, and names code that you did not name: {', '.join(unnamed)}. It was "
            "not imported. If you trust it, let FOLDER be the folder that "
            f"{' and '.join(tops)} {'lies' if len(tops) == 1 else 'lie'} in. To continue that run: "
            f"counterpoise resume {run} --trust FOLDER. For a new one, copy the file into FOLDER, delete the table "
            "[code] and the line fingerprint of [data] from the copy, and run the copy."
        )


def check_unchanged(names: Iterable[str], code: Mapping[str, str], where: str, part: bool = False) -> None:
    """Refuse code that is not what it was, by its digests. With `part`, other names may have files in `code` too."""
    now = digests(names)
    changed = [file for file in sorted(now if part else now.keys() | code.keys()) if now.get(file) != code.get(file)]
    if changed:
        differ, them = ("differs", "it") if len(changed) == 1 else ("differ", "them")
        raise CounterpoiseError(
            f"{where}: {', '.join(changed)} {differ} from the code that this run began with. Restore {them}, or start "
            "a new run in another folder."
        )
