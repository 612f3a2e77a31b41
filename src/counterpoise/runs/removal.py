"""Removing runs and comparisons: file by file, only what counterpoise writes, and never what another process is writing."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path

from counterpoise.errors import CounterpoiseError
from counterpoise.runs.checkpoint import read_index
from counterpoise.runs.contents import (
    COMPARISON,
    CONFIG,
    FAILURE,
    METRICS,
    of_checkpoint,
    of_comparison,
    of_run,
    of_tensorboard,
)
from counterpoise.runs.files import check_plain
from counterpoise.runs.folder import busy, never_begun
from counterpoise.runs.locks import LOCK, Busy, hold, in_use
from counterpoise.runs.plan import read_plan
from counterpoise.texts import parse_json, parse_toml, read_lines, read_text

__all__ = ["check_removable", "is_ours", "remove"]


def check_removable(folder: Path) -> None:
    """Refuse a folder that is not a run's or a comparison's, that holds links, or that a process is writing to."""
    if not folder.is_dir():
        raise CounterpoiseError(f"There is no folder {folder}.")
    if folder.is_symlink():
        raise CounterpoiseError(f"{folder} is a link to {folder.resolve()}. Name the folder itself to remove it.")
    compared = (folder / COMPARISON).exists()
    if not compared and not _is_run(folder):
        raise CounterpoiseError(f"{folder} is not the folder of a run, a comparison or a sweep; it is left alone.")
    check_plain(folder)
    for place in (folder, *(_pieces(folder) if compared else ())):
        if in_use(place):
            raise Busy(busy(place))


def remove(folder: Path) -> list[Path]:
    """Remove a run, a comparison or a sweep. Returns what is left: files that counterpoise did not write."""
    check_removable(folder)
    try:
        with hold(folder, busy(folder)):
            if (folder / COMPARISON).exists():
                for piece in _pieces(folder):
                    with hold(piece, busy(piece)):
                        _remove_run(piece)
                    _leave(piece.parent)
                _unlink(folder, of_comparison)
            else:
                _remove_run(folder)
            _leave(folder)
    except OSError as error:
        raise CounterpoiseError(f"{folder} cannot be removed: {error.strerror or error}.") from None
    return sorted(path for path in folder.rglob("*") if not path.is_dir()) if folder.exists() else []


def _is_run(folder: Path) -> bool:
    """Whether a run was begun here: its configuration lies beside a record with a schema, or beside a valid checkpoint.

    The checkpoint tells for a run whose configuration or record is damaged.
    """
    with contextlib.suppress(CounterpoiseError, OSError):
        if (folder / CONFIG).exists() and read_index(folder / "checkpoint"):
            return True
    with contextlib.suppress(CounterpoiseError, OSError):
        values = parse_toml(read_text(folder / CONFIG), str(folder / CONFIG))
        first = parse_json(next(read_lines(folder / METRICS), ""), str(folder / METRICS))
        return {"method", "data"} <= values.keys() and isinstance(first, dict) and "schema" in first
    return False


def _pieces(folder: Path) -> Iterator[Path]:
    """The runs of a comparison that are there: begun, or failed before that."""
    plan = read_plan(folder)
    places = (folder / piece.place for arm in plan.arms for piece in plan.pieces(arm))
    return (place for place in places if place.is_dir() and is_ours(place))


def is_ours(folder: Path) -> bool:
    """Whether a folder holds a run, or nothing but what one leaves that failed before it was begun."""
    return _is_run(folder) or all(path.name == FAILURE or never_begun(path) for path in folder.iterdir())


def _remove_run(folder: Path) -> None:
    for name, ours in (("checkpoint", of_checkpoint), ("tensorboard", of_tensorboard)):
        _unlink(folder / name, ours)
        _leave(folder / name)
    _unlink(folder, of_run)
    _leave(folder)


def _unlink(folder: Path, ours: Callable[[str], bool]) -> None:
    """Remove files of ours; last of all those by which an interrupted removal is gone on with."""
    files = [path for path in folder.glob("*") if ours(path.name) and path.is_file() and not path.is_symlink()]
    for path in sorted(files, key=lambda path: path.name in (CONFIG, METRICS, COMPARISON)):
        path.unlink(missing_ok=True)


def _leave(folder: Path) -> None:
    """Remove a folder's lock, and the folder if nothing is left in it."""
    (folder / LOCK).unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
