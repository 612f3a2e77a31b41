"""Remove a study's folder: every cell's runs, and only files that counterpoise writes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from counterpoise.comparisons import removal
from counterpoise.comparisons.contents import COMPARISON
from counterpoise.errors import CounterpoiseError
from counterpoise.runs.files import check_plain
from counterpoise.runs.folder import busy
from counterpoise.runs.locks import Busy, hold, in_use
from counterpoise.runs.removal import leave, remove_files
from counterpoise.studies.contents import STUDY, of_study
from counterpoise.texts import parse_toml, read_text

__all__ = ["check_removable", "remove"]


def check_removable(folder: Path) -> None:
    """As for a run or a comparison (`counterpoise.comparisons.removal`), and for a study with all of its cells."""
    if folder.is_symlink() or not _is_study(folder):
        removal.check_removable(folder)
        return
    check_plain(folder)
    if in_use(folder):
        raise Busy(busy(folder))
    for cell in _cells(folder):
        removal.check_removable(cell)


def remove(folder: Path) -> list[Path]:
    """Remove a run, a comparison, a sweep or a study. Return the files left, which counterpoise did not write."""
    check_removable(folder)
    if not _is_study(folder):
        return removal.remove(folder)
    try:
        with hold(folder, busy(folder)):
            for cell in _cells(folder):
                removal.remove(cell)
            remove_files(folder, of_study, last=(STUDY,))
            leave(folder)
    except OSError as error:
        raise CounterpoiseError(f"{folder} cannot be removed: {error.strerror or error}.") from None
    return sorted(path for path in folder.rglob("*") if not path.is_dir()) if folder.exists() else []


def _is_study(folder: Path) -> bool:
    """Whether a study was run here. A user may have written a study of their own into a file of the same name."""
    path = folder / STUDY
    with contextlib.suppress(CounterpoiseError, OSError):
        return {"title", "made"} == parse_toml(read_text(path), str(path)).keys()
    return False


def _cells(folder: Path) -> Iterator[Path]:
    """The folders of a study's cells."""
    return (path.parent for path in sorted(folder.glob(f"*/{COMPARISON}")))
