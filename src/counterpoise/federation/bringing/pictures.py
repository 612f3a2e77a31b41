"""A folder of pictures, with one folder inside for each class: ``animals/cat/1.png``."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.bringing.facts import list_files
from counterpoise.federation.bringing.samples import has_colour
from counterpoise.federation.bringing.source import Block, Heads, Later, Source
from counterpoise.federation.naming import sorted_names

__all__ = ["from_pictures"]

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""What PIL may open. Some of its other formats run programs."""
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm")
_MOST_PIXELS = 89_000_000
"""A larger picture is refused: a small file can unpack to any size."""
_TRAIN, _TESTS = "train", ("test", "val", "validation")


def from_pictures(folder: Path, where: str) -> tuple[Source, Source | None]:
    """The pictures below a folder, and those of its test part if it has the folders ``train`` and ``test``."""
    inside = {path.name for path in folder.iterdir() if path.is_dir()}
    if _TRAIN not in inside:
        return _classes(folder, where), None
    test = next((name for name in _TESTS if name in inside), None)
    return _classes(folder / _TRAIN, where), None if test is None else _classes(folder / test, where)


def _classes(folder: Path, where: str) -> Source:
    names = sorted_names(path.name for path in folder.iterdir() if path.is_dir() and path.name[0] not in "._")
    each = [[path for path in list_files(folder / name) if path.suffix.lower() in _SUFFIXES] for name in names]
    if not any(each) and (loose := [path for path in sorted(folder.iterdir()) if path.suffix.lower() in _SUFFIXES]):
        raise CounterpoiseError(
            f"{where}: the pictures of {folder} lie side by side, {loose[0].name} for example. Put them into one folder "
            f"for each class, {folder / 'cat' / loose[0].name}."
        )
    if not names:
        raise CounterpoiseError(
            f"{where}: {folder} holds neither arrays nor tables nor pictures. Data sets are .npy files x_train and y_train, "
            "train.csv or train.parquet, or a folder of pictures for each class."
        )
    paths = [path for files in each for path in files]
    labels = np.repeat(np.arange(len(names)), [len(files) for files in each])

    def read(start: int, stop: int) -> tuple[Block, Block]:
        return [Later(functools.partial(_open, path)) for path in paths[start:stop]], labels[start:stop]

    return Source(where, len(paths), read, names, heads=lambda: _look(paths))


def _look(paths: list[Path]) -> Heads:
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(_head, paths))
    sizes = {size: str(path) for path, (_, size) in zip(paths, found, strict=True)}
    return Heads(any(colour for colour, _ in found), sizes)


def _head(path: Path) -> tuple[bool, tuple[int, int]]:
    """Whether a picture has colours, and its height and width."""
    picture = _open(path, whole=False)
    return has_colour(picture), (picture.height, picture.width)


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
