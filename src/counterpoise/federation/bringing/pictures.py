"""A folder of pictures, with one folder inside for each class: ``animals/cat/1.png``.

An outer folder may say who each picture comes from: ``photos/hospital/cat/1.png``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.bringing.facts import list_files
from counterpoise.federation.bringing.samples import has_colour
from counterpoise.federation.bringing.source import Block, Columns, Head, Later, Source
from counterpoise.federation.naming import Names, sorted_names

__all__ = ["from_pictures"]

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""What PIL may open. Some of its other formats run programs."""
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm")
_MOST_PIXELS = 89_000_000
"""A larger picture is refused: a small file can unpack to any size."""
_HIDDEN = "._"
"""How the names of folders begin that are nobody's classes, such as a viewer's previews."""
_TRAIN, _TESTS = "train", ("test", "val", "validation")


def from_pictures(folder: Path, where: str, columns: Columns, natural: bool) -> tuple[Source, Source | None]:
    """The pictures below a folder, and those of its test part if it has the folders ``train`` and ``test``.

    If classes lie in outer folders, `columns` says which of both are the classes. Without it, the outer folders are
    identities if clients are (`natural`), and otherwise the data are refused.
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


def _pictures(folder: Path) -> list[Path]:
    found = [path for path in list_files(folder) if path.suffix.lower() in _SUFFIXES]
    return [path for path in found if not any(name[0] in _HIDDEN for name in path.relative_to(folder).parts[:-1])]


def _classes(folder: Path, where: str, level: str | None) -> Source:
    names = _folders(folder)
    each = {name: _pictures(folder / name) for name in names}
    if not any(each.values()) and (loose := [p for p in sorted(folder.iterdir()) if p.suffix.lower() in _SUFFIXES]):
        raise CounterpoiseError(
            f"{where}: the pictures of {folder} lie side by side, {loose[0].name} for example. Put them into one folder "
            f"for each class, {folder / 'cat' / loose[0].name}."
        )
    if not names:
        raise CounterpoiseError(
            f"{where}: {folder} holds neither arrays nor tables nor pictures. Data sets are .npy files x_train and y_train, "
            "train.csv or train.parquet, or a folder of pictures for each class."
        )
    paths = [path for files in each.values() for path in files]
    outer = [name for name, files in each.items() for _ in files]
    inner = [_inside(path, folder) for path in paths]
    _check_nesting(folder, dict(zip(inner, paths, strict=True)), level, where)
    if level == "inner" and any(inner):
        names = sorted_names(kind for name in names for kind in _folders(folder / name))
        outer, inner = inner, outer
    place = {name: number for number, name in enumerate(names)}
    labels = np.array([place[name] for name in outer], np.int64)

    def read(start: int, stop: int) -> tuple[Block, Block]:
        return [Later(functools.partial(_open, path)) for path in paths[start:stop]], labels[start:stop]

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
        raise CounterpoiseError(
            f"{where}: {folder} has folders within folders, {shown} for example, so it does not say which are the "
            f"classes. If {shown.parts[0]} is a client, use partition=cp.natural(), or give each its own data set, {each}. "
            f"If {shown.parts[1]} is a class but {shown.parts[0]} no client, say columns={{'targets': 'inner'}}; if "
            f"{shown.parts[0]} is a class, columns={{'targets': 'outer'}}."
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


def _look(paths: list[Path]) -> list[Head]:
    with ThreadPoolExecutor() as pool:
        return list(pool.map(_head, paths))


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
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CounterpoiseError(f"{path} cannot be read as a picture ({said}). Replace or remove it.") from None
