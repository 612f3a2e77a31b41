"""Tell whether a folder is a run's, and remove a run: file by file, and only files that counterpoise writes."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path

from counterpoise.errors import CounterpoiseError
from counterpoise.runs.contents import CONFIG, FAILURE, METRICS, of_checkpoint, of_run, of_tensorboard
from counterpoise.runs.files import check_plain
from counterpoise.runs.folder import busy, never_begun
from counterpoise.runs.index import read_index
from counterpoise.runs.locks import LOCK, hold
from counterpoise.texts import parse_json, parse_toml, read_lines, read_text

__all__ = ["clear_run", "is_ours", "is_run", "leave", "remove_files", "remove_run"]


def is_run(folder: Path) -> bool:
    """Whether a run began here: there is a configuration, and beside it a record with a schema or a valid checkpoint.

    The checkpoint identifies a run whose configuration or record is damaged.
    """
    with contextlib.suppress(CounterpoiseError, OSError):
        if (folder / CONFIG).exists() and read_index(folder / "checkpoint"):
            return True
    with contextlib.suppress(CounterpoiseError, OSError):
        values = parse_toml(read_text(folder / CONFIG), str(folder / CONFIG))
        first = parse_json(next(read_lines(folder / METRICS), ""), str(folder / METRICS))
        return {"method", "data"} <= values.keys() and isinstance(first, dict) and "schema" in first
    return False


def is_ours(folder: Path) -> bool:
    """Whether a folder holds a run, or only what a run leaves behind that failed before it began."""
    return is_run(folder) or all(path.name == FAILURE or never_begun(path) for path in folder.iterdir())


_INSIDE = {"checkpoint": of_checkpoint, "tensorboard": of_tensorboard}
"""The folders in a run's folder, and which files in them are ours."""


def remove_run(folder: Path) -> None:
    """Remove the files of a run, and its folder if that is then empty."""
    _empty(folder)
    leave(folder)


def clear_run(folder: Path) -> None:
    """Remove a run to make room for another. A folder that holds anything else as well is left alone."""
    if not is_run(folder):
        return
    check_plain(folder)
    with hold(folder, busy(folder)):
        for path in folder.iterdir():
            inside = [one.name for one in path.iterdir()] if path.is_dir() else []
            ours = all(map(_INSIDE.get(path.name, _nothing), inside)) if path.is_dir() else of_run(path.name)
            if not ours and path.name != LOCK:
                raise CounterpoiseError(
                    f"{folder} is left alone: beside its run it holds {path.name}, which counterpoise did not write. "
                    "Choose another folder."
                )
        _empty(folder)


def _nothing(name: str) -> bool:
    return False


def _empty(folder: Path) -> None:
    for name, ours in _INSIDE.items():
        remove_files(folder / name, ours)
        leave(folder / name)
    remove_files(folder, of_run, last=(CONFIG, METRICS))


def remove_files(folder: Path, ours: Callable[[str], bool], last: tuple[str, ...] = ()) -> None:
    """Remove the files whose names are `ours`; those in `last` go last, so that an interrupted removal can continue."""
    files = [path for path in folder.glob("*") if ours(path.name) and path.is_file() and not path.is_symlink()]
    for path in sorted(files, key=lambda path: path.name in last):
        path.unlink(missing_ok=True)


def leave(folder: Path) -> None:
    """Remove a folder's lock, and the folder if it is then empty. The current folder, by the name ``.``, stays."""
    (folder / LOCK).unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.EINVAL):
            raise
