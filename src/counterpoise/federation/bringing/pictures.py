"""A folder of pictures, with one folder inside for each class: ``animals/cat/1.png``.

An outer folder may say who each picture comes from: ``photos/hospital/cat/1.png``.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.bringing.facts import list_files
from counterpoise.federation.bringing.samples import has_colour
from counterpoise.federation.bringing.source import Block, Columns, Head, Later, Source
from counterpoise.federation.naming import Names, sorted_names

__all__ = ["PICTURES", "from_pictures"]

log = logging.getLogger(__name__)

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""What PIL may open. Some of its other formats run programs."""
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm")
_MOST_PIXELS = 89_000_000
"""A larger picture is refused: a small file can unpack to any size."""
_HIDDEN = "._"
"""A folder whose name begins with one of these, such as a viewer's previews, is no class."""
_NOTES = (".txt", ".md", ".json", ".xml", ".csv", ".yaml", ".yml", ".html", ".db", ".ini")
"""Files that often lie beside pictures, so that no warning says that they are left out."""
_SHOWN = 3
_TRAIN, _TESTS = "train", ("test", "val", "validation")


def from_pictures(folder: Path, where: str, columns: Columns, natural: bool) -> tuple[Source, Source | None]:
    """The pictures below a folder, and those of its test part if it has the folders ``train`` and ``test``.

    If there are folders within folders, `columns` says whether the outer or the inner ones are the classes. Without it,
    the outer ones are identities if each client is one (`natural`); otherwise the data are refused.
    """
    level = _class_level(columns, where) or ("inner" if natural else None)
    inside = _folders(folder)
    if _TRAIN not in inside:
        return _classes(folder, where, level), None
    test = next((name for name in _TESTS if name in inside), None)
    return _classes(folder / _TRAIN, where, level), None if test is None else _classes(folder / test, where, level)


def _class_level(columns: Columns, where: str) -> str | None:
    """Which folders are the classes, if the user says: the outer or the inner ones."""
    both = {"outer", "inner"}
    targets, who = (columns.get(what) for what in ("targets", "identity"))
    if "inputs" in columns or not {targets, who} <= {None, *both} or (targets is not None and targets == who):
        raise CounterpoiseError(
            f"{where}: these are pictures, whose folders are called outer and inner. For photos/hospital/cat/1.png say "
            "columns={'identity': 'outer', 'targets': 'inner'}; for photos/cat/1.png leave columns out."
        )
    return str(targets) if targets else (both - {who}).pop() if who else None


def _folders(folder: Path) -> Names:
    return sorted_names(path.name for path in folder.iterdir() if path.is_dir() and path.name[0] not in _HIDDEN)


def _files(folder: Path) -> list[Path]:
    files = list_files(folder)
    return [path for path in files if not any(name[0] in _HIDDEN for name in path.relative_to(folder).parts[:-1])]


def _pictures(files: list[Path]) -> list[Path]:
    return [path for path in files if path.suffix.lower() in PICTURES]


def _tell_left_out(files: list[Path]) -> None:
    known = (*PICTURES, *_NOTES)
    if odd := [path for path in files if path.suffix.lower() not in known and path.name[0] != "."]:
        log.warning(
            "%d %s left out (%s for example): the names of pictures end in %s.",
            len(odd),
            "file is" if len(odd) == 1 else "files are",
            odd[0],
            ", ".join(PICTURES),
        )


def _classes(folder: Path, where: str, level: str | None) -> Source:
    names = _folders(folder)
    files = {name: _files(folder / name) for name in names}
    each = {name: _pictures(found) for name, found in files.items()}
    _tell_left_out([path for found in files.values() for path in found])
    if not any(each.values()) and (loose := [p for p in sorted(folder.iterdir()) if p.suffix.lower() in PICTURES]):
        raise CounterpoiseError(
            f"{where}: the pictures of {folder} lie side by side, {loose[0].name} for example. Put them into one folder "
            f"for each class, {folder / 'cat' / loose[0].name}."
        )
    if not names:
        raise CounterpoiseError(
            f"{where}: {folder} holds neither arrays nor tables nor pictures. Data sets are .npy files x_train and y_train, "
            "train.csv or train.parquet, or a folder of pictures for each class."
        )
    paths = [path for found in each.values() for path in found]
    outer = [name for name, found in each.items() for _ in found]
    inner = [_inside(path, folder) for path in paths]
    _check_nesting(folder, dict(zip(inner, paths, strict=True)), level, where)
    if level == "inner" and any(inner):
        _check_depth(folder, paths, where)
        _tell_unfilled([name for name, found in each.items() if not found])
        names = sorted_names(kind for name in names for kind in _folders(folder / name))
        outer, inner = inner, outer
    place = {name: number for number, name in enumerate(names)}
    labels = np.array([place[name] for name in outer], np.int64)

    def read(start: int, stop: int) -> tuple[Block, Block]:
        return [Later(functools.partial(_opened, path, paths)) for path in paths[start:stop]], labels[start:stop]

    who = np.array(inner) if inner and all(inner) else None
    return Source(where, len(paths), read, names, who, heads=lambda: _look(paths))


def _inside(path: Path, folder: Path) -> str:
    """The folder inside the outer folder in which a picture lies; empty if it lies in the outer folder itself."""
    _, *between, _ = path.relative_to(folder).parts
    return between[0] if between else ""


def _check_nesting(folder: Path, found: Mapping[str, Path], level: str | None, where: str) -> None:
    """Refuse folders within folders unless it is clear which are the classes; `found` has a picture of each inner one."""
    deep = next((path for inner, path in found.items() if inner), None)
    if deep is None or level == "outer":
        return
    shown = deep.relative_to(folder)
    each = f"{{p.name: p for p in Path({str(folder)!r}).iterdir() if p.is_dir()}}"
    if level is None:
        client, kind = shown.parts[:2]
        raise CounterpoiseError(
            f"{where}: {folder} has folders within folders, {shown} for example, so it does not say which are the "
            f"classes. If {client} is a client and {kind} a class, use partition=cp.natural() (in a TOML file: partition "
            f"= \"natural\"). If {client} is no client, say columns={{'targets': 'inner'}}; if {client} is a class, "
            "columns={'targets': 'outer'} (in a TOML file: columns = { targets = \"outer\" })."
        )
    if "" in found:
        raise CounterpoiseError(
            f"{where}: {found['']} lies in no folder of a class, as {shown} does. Put it into one, or remove it."
        )
    if _TRAIN in found:
        raise CounterpoiseError(
            f"{where}: {shown.parts[0]} in {folder} has a training and a test part of its own. Give each its own data set, "
            f"without a partition: {each}."
        )


def _check_depth(folder: Path, paths: list[Path], where: str) -> None:
    """Refuse pictures below a client's classes: more often, the folder given is the one above the clients."""
    for path in paths:
        client, kind, *between, _ = path.relative_to(folder).parts
        if between:
            raise CounterpoiseError(
                f"{where}: {path} lies in three folders, and only two are looked at: {client} would be the client and "
                f"{kind} the class. If the clients are in {client}, give {folder / client}; otherwise put the pictures "
                "into the folder of their class."
            )


def _tell_unfilled(clients: list[str]) -> None:
    if clients:
        some = ", ".join(clients[:_SHOWN]) + (", ..." if len(clients) > _SHOWN else "")
        log.warning("No pictures are in %s, so there is no such client.", some)


def _look(paths: list[Path]) -> list[Head]:
    return _each(_head, paths)


def _each(read: Callable[[Path], Any], paths: list[Path]) -> list[Any]:
    """What is read of each picture, or one error that names all that cannot be read."""
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(functools.partial(_or_error, read), paths))
    broken = [one for one in found if isinstance(one, CounterpoiseError)]
    if len(broken) < 2:
        for error in broken:
            raise error
        return found
    some = " ".join(map(str, broken[:_SHOWN])) + (" ..." if len(broken) > _SHOWN else "")
    raise CounterpoiseError(f"{len(broken)} of {len(paths)} pictures cannot be read. {some}")


def _or_error(read: Callable[[Path], Any], path: Path) -> Any:
    try:
        return read(path)
    except CounterpoiseError as error:
        return error


def _opened(path: Path, paths: list[Path]) -> Any:
    """A picture. If it is broken, all others are tried too, so that one error names all that are."""
    try:
        return _open(path)
    except CounterpoiseError:
        _each(_tried, paths)
        raise


def _tried(path: Path) -> None:
    _open(path)


def _head(path: Path) -> Head:
    picture = _open(path, whole=False)
    transparent = picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in picture.info
    return Head(str(path), (picture.height, picture.width), has_colour(picture), transparent)


def _open(path: Path, whole: bool = True) -> Any:
    """A picture, or only what its file's head says about it."""
    try:
        from PIL import Image
    except ImportError:
        raise CounterpoiseError("Reading pictures needs Pillow. Install it with: pip install pillow") from None
    try:
        with Image.open(path, formats=_FORMATS) as picture:
            if picture.width * picture.height > _MOST_PIXELS:
                raise ValueError(f"it has {picture.width} x {picture.height} pixels, more than {_MOST_PIXELS}")
            if whole:
                picture.load()
            return picture
    except Exception as error:  # every format has errors of its own
        said = str(error).splitlines()[0].replace(f" {str(path)!r}", "") if str(error) else type(error).__name__
        raise CounterpoiseError(f"{path} cannot be read as a picture ({said}). Replace or remove it.") from None
