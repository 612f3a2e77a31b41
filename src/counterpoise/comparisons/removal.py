"""Remove runs and comparisons: only files that counterpoise writes, and none that a process is using."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from counterpoise.comparisons.contents import COMPARISON, of_comparison
from counterpoise.comparisons.plan import read_plan
from counterpoise.errors import CounterpoiseError, no_folder
from counterpoise.runs.files import check_plain
from counterpoise.runs.folder import busy
from counterpoise.runs.locks import Busy, hold, in_use
from counterpoise.runs.removal import is_ours, is_run, leave, remove_files, remove_run

__all__ = ["check_removable", "remove"]


def check_removable(folder: Path) -> None:
    """Refuse a folder that is not a run's or a comparison's, that holds links, or that a process is using."""
    if not folder.is_dir():
        raise no_folder(folder)
    if folder.is_symlink():
        raise CounterpoiseError(f"{folder} is a link to {folder.resolve()}. Name the folder itself to remove it.")
    compared = (folder / COMPARISON).exists()
    if not compared and not is_run(folder):
        raise CounterpoiseError(
            f"{folder} is not the folder of a run, a comparison, a sweep or a study; it is left alone."
        )
    check_plain(folder)
    for place in (folder, *(_pieces(folder) if compared else ())):
        if in_use(place):
            raise Busy(busy(place))


def remove(folder: Path) -> list[Path]:
    """Remove a run, a comparison or a sweep. Return the files left, which counterpoise did not write."""
    check_removable(folder)
    try:
        with hold(folder, busy(folder)):
            if (folder / COMPARISON).exists():
                for piece in _pieces(folder):
                    with hold(piece, busy(piece)):
                        remove_run(piece)
                    leave(piece.parent)
                remove_files(folder, of_comparison, last=(COMPARISON,))
            else:
                remove_run(folder)
            leave(folder)
    except OSError as error:
        raise CounterpoiseError(f"{folder} cannot be removed: {error.strerror or error}.") from None
    return sorted(path for path in folder.rglob("*") if not path.is_dir()) if folder.exists() else []


def _pieces(folder: Path) -> Iterator[Path]:
    """The folders of a comparison's runs that exist, including those of runs that failed before they began."""
    plan = read_plan(folder)
    places = (folder / piece.place for arm in plan.arms for piece in plan.pieces(arm))
    return (place for place in places if place.is_dir() and is_ours(place))
