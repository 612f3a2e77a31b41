"""Identify files without reading them: by their paths, sizes and times."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from counterpoise.errors import CounterpoiseError

__all__ = ["facts_of", "list_files"]

_MOST_FILES = 5_000_000
"""A folder with more files is taken for a mistake."""


def list_files(folder: Path) -> list[Path]:
    """Every plain file below a folder, in order. Folders that are links are not followed."""
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders.sort()
        found += [path for name in sorted(names) if (path := Path(place, name)).is_file()]
        if len(found) > _MOST_FILES:
            raise CounterpoiseError(f"{folder} holds more than {_MOST_FILES:,} files; is it the right folder?")
    return found


def facts_of(paths: Iterable[Path]) -> str:
    """A digest of where files lie, how long they are and when they were written. A folder counts with all in it."""
    digest = hashlib.sha256()
    for path in paths:
        for file in list_files(path) if path.is_dir() else [path]:
            found = file.stat()
            digest.update(
                f"{file.absolute()}\0{found.st_size}\0{found.st_mtime_ns}\0".encode("utf-8", "surrogateescape")
            )
    return digest.hexdigest()
