"""Code of the user's own that is given by name, such as ``my_project.models:net``: where it is, and importing it.

Nothing is imported unless the user named it, in a file or on the command line, or said that its folder is trusted
(`allow`). A name found elsewhere, such as in the folder of somebody else's run, is only text.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from itertools import accumulate, pairwise
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from counterpoise.errors import CounterpoiseError, brief, unknown
from counterpoise.texts import read_text

__all__ = [
    "LOOKED_FOR",
    "TAKEN",
    "allow",
    "blamed",
    "digests",
    "folder_of",
    "folders",
    "is_there",
    "load",
    "modules_like",
    "own_part",
    "respelt",
    "told",
]

TAKEN = {"flwr"}
"""Our own names. After one of these and a colon comes another name of ours, not an attribute."""
LOOKED_FOR = "Code is looked for beside the file that names it, or in the current folder if you type its name."
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", re.ASCII)
_MOST_FILES = 500
"""A name whose module imports more files than this from its folder is taken for a mistake."""

_folders: dict[str, Path] = {}
"""Every name that the user gave, and the folder it is imported from."""
_tops: dict[str, Path] = {}
"""Every top-level module that was imported from a user's folder, and that folder."""


def own_part(name: str) -> str:
    """The part of a name that is code of the user's own; empty if there is none.

    >>> own_part("my_project.models:net"), own_part("flwr:mnist"), own_part("../models:net")
    ('my_project.models:net', '', '')
    """
    while name.partition(":")[0] in TAKEN:
        name = name.partition(":")[2]
    return name if _NAME.fullmatch(name) else ""


def respelt(name: str) -> list[str]:
    """The name of code of the user's own that was meant by this spelling; empty if it is no such name.

    >>> respelt("lab.rules.ours"), respelt("lab/rules.py:ours"), respelt("lab.rules:ours"), respelt("fedpox")
    (['lab.rules:ours'], ['lab.rules:ours'], [], [])
    """
    module, colon, attribute = re.sub(r"[/\\]", ".", name).rpartition(":" if ":" in name else ".")
    meant = f"{module.removesuffix('.py').strip('.')}:{attribute}"
    return [meant] if meant != name and colon and "/" not in attribute and own_part(meant) == meant else []


def allow(values: Any, folder: str | Path | None) -> None:
    """Allow the names in these values to be imported from `folder`; do nothing if it is None."""
    if folder is not None:
        _folders.update(dict.fromkeys(_mentioned(values), Path(folder).resolve()))


def folder_of(name: str) -> Path | None:
    """Where a name may be imported from; None if the user did not give it."""
    return _folders.get(name)


def folders(names: Iterable[str]) -> dict[str, str]:
    """The folders of these names as plain values, for a worker in another process."""
    return {name: str(_folders[name]) for name in names if name in _folders}


def is_there(module: str, folder: Path) -> bool:
    """Whether a folder holds a module."""
    return _file(module, folder) is not None


def modules_like(module: str, folder: Path) -> list[str]:
    """The module in the folder whose name is most like this one, if one is."""
    return get_close_matches(module, [path.stem for path in folder.glob("*.py")], n=1)


def _mentioned(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        for token in re.split(r"[^\w.:]+", values):
            yield from filter(_NAME.fullmatch, map(":".join, pairwise(token.split(":"))))
    elif isinstance(values, Mapping):
        yield from _mentioned([*values, *values.values()])
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _mentioned(value)


def load(name: str) -> Any:
    """Import what the user named. Each way to fail is one sentence."""
    folder, (module, _, attribute) = _folders[name], name.partition(":")
    files = _files([name], folder)
    found = _imported(module, folder, files)
    if not hasattr(found, attribute):
        near = [one for one in vars(found) if not one.startswith("_")]
        raise unknown("name", attribute, near, f"in {files[module]}")
    value = getattr(found, attribute)
    if callable(value) and (home := getattr(value, "__module__", None)) not in files:
        raise CounterpoiseError(
            f"{name} is defined in {home}, not in {folder}, so it is not used. Name a function or a class that is "
            f"written there; it may call {attribute}."
        )
    return value


def _imported(module: str, folder: Path, files: Mapping[str, Path]) -> ModuleType:
    """Import a module from a folder. Refuse it if one of the modules that it needs has the name of another module."""
    tops = {name.partition(".")[0]: folder for name in files}
    for name in tops.keys() | files.keys():
        there = sys.modules.get(name)
        if there is not None and not _lies_in(there, files.get(name, folder)):
            raise CounterpoiseError(
                f"The module {name} in {folder} cannot be imported: another one of that name is loaded already. "
                "Rename it."
            )
        if name in tops and (place := _elsewhere(name, folder)):
            raise CounterpoiseError(
                f"The module {name} in {folder} cannot be imported: another one of that name is in {place}. Rename it."
            )
    if _Sources not in sys.meta_path:
        sys.meta_path.insert(0, _Sources)
    before = dict(_tops)
    _tops.update(tops)
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        _tops.clear()
        _tops.update(before)
        raise CounterpoiseError(f"The module {module} in {folder} cannot be imported: {told(error, folder)}") from error


def _lies_in(module: ModuleType, folder: Path) -> bool:
    places = [module.__file__] if getattr(module, "__file__", None) else list(getattr(module, "__path__", ()))
    return bool(places) and all(Path(str(place)).resolve().is_relative_to(folder.resolve()) for place in places)


def _elsewhere(top: str, folder: Path) -> str:
    """Where else than in a folder Python would find a module; empty if nowhere."""
    if _tops.get(top, folder) != folder:
        return str(_tops[top])
    for finder in sys.meta_path:
        look = None if finder is _Sources else getattr(finder, "find_spec", None)
        found = None if look is None else look(top, None)
        if found is not None and found.loader is not None:  # not only a folder of that name
            inside = found.has_location and Path(found.origin).resolve().is_relative_to(folder)
            return "" if inside else str(found.origin)
    return ""


class _Sources:
    """Python asks this first for the modules of a user's folder. They are compiled from the source that is hashed.

    Compiled files (.pyc) are ignored, because a folder from somebody else may hold any.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        folder = _tops.get(name.partition(".")[0])
        if folder is None:
            return None
        if (file := _file(name, folder)) is not None:
            return spec_from_file_location(name, file, loader=_Source(name, str(file)))
        place = folder.joinpath(*name.split("."))
        if not place.is_dir():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(place)]
        return spec


class _Source(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def told(error: BaseException, folder: Path | None) -> str:
    """An error in the user's own code: what, and in which line of which file."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    inside = [place for place in frames if folder is None or Path(place[0]).resolve().is_relative_to(folder)]
    if isinstance(error, SyntaxError) and error.filename:
        inside.append((error.filename, error.lineno))
    where = f" ({inside[-1][0]}, line {inside[-1][1]})" if inside else ""
    message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return f"{type(error).__name__}: {brief(message)[1:-1]}{where}."


def blamed(error: BaseException) -> str:
    """An error that was raised in code by name, as `told` says it; empty if it was raised elsewhere."""
    files = [Path(frame.filename).resolve() for frame in traceback.extract_tb(error.__traceback__)]
    inside = (folder for file in reversed(files) for folder in _tops.values() if file.is_relative_to(folder))
    return told(error, folder) if (folder := next(inside, None)) else ""


# ---------------------------------------------------------------- source files


def digests(names: Iterable[str]) -> dict[str, str]:
    """SHA-256 of the files that names are made from: their modules, and what these import from the same folder.

    Files are found by reading the import statements, so nothing is run.
    """
    found = {}
    for name in names:
        folder = _folders[name]
        for file in _files([name], folder).values():
            place = file.relative_to(folder).as_posix()
            found[place] = hashlib.sha256(read_text(file).encode()).hexdigest()
    return dict(sorted(found.items()))


def _files(names: Iterable[str], folder: Path) -> dict[str, Path]:
    """The modules in a folder that names need, with their files."""
    found: dict[str, Path] = {}
    waiting = [name.partition(":")[0] for name in names]
    for module in waiting:
        if _file(module, folder) is None:
            path = module.replace(".", "/")
            where = (
                f"Give the folder that {folder.name} lies in: {folder.parent}."
                if folder.name == module.partition(".")[0]
                else LOOKED_FOR
            )
            raise CounterpoiseError(
                f"There is no module {module} in {folder}: neither {path}.py nor {path}/__init__.py is there. {where}"
            )
    while waiting:
        for module in accumulate(waiting.pop().split("."), "{}.{}".format):
            if module in found or (file := _file(module, folder)) is None:
                continue
            if len(found) == _MOST_FILES:
                raise CounterpoiseError(f"The code in {folder} imports more than {_MOST_FILES} files from there.")
            found[module] = file
            waiting += _asked(read_text(file), module, file.name == "__init__.py")
    return found


def _file(module: str, folder: Path) -> Path | None:
    base = folder.joinpath(*module.split("."))
    for file in (base / "__init__.py", base.with_name(f"{base.name}.py")):
        if file.is_file():
            if not file.resolve().is_relative_to(folder):
                raise CounterpoiseError(f"{file} leads out of {folder}. Put a copy of the file there.")
            return file
    return None


def _asked(text: str, module: str, package: bool) -> Iterator[str]:
    """The modules that a source file may import, by their full names."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):  # importing it says what is wrong
        return
    parts = module.split(".") if package else module.split(".")[:-1]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names if alias.name != "*")
            yield from [base] if base else []
