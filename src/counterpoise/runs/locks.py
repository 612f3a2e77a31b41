"""One process at a time in a folder, on systems that have file locks.

The operating system locks the file ``.lock``, which stays empty. The lock ends when the process that holds it and all
processes that inherited it have ended.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from counterpoise.errors import CounterpoiseError
from counterpoise.runs.files import open_plain

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

__all__ = ["LOCK", "Busy", "abandoned", "hold", "in_use"]

LOCK = ".lock"
_SECONDS_BETWEEN_TRIES = 0.1


class Busy(CounterpoiseError):
    """Another process holds the folder. Nothing was touched."""


@contextlib.contextmanager
def hold(
    folder: Path,
    sentence: str,
    patience: float = 0.0,
    hopeless: Callable[[], bool] = lambda: False,
    name: str = LOCK,
) -> Iterator[int | None]:
    """Lock a folder through ``.lock`` or the file `name` in it, and yield the file descriptor.

    Raise `Busy` with `sentence` after `patience` seconds without success, or as soon as waiting is `hopeless`.
    """
    if fcntl is None:
        yield None
        return
    until = time.monotonic() + patience
    while (file := _taken(folder / name, os.O_CREAT)) is None:
        if time.monotonic() >= until or hopeless():
            raise Busy(sentence)
        time.sleep(_SECONDS_BETWEEN_TRIES)
    try:
        yield file
    finally:
        os.close(file)


def in_use(folder: Path, name: str = LOCK) -> bool:
    """Whether another process has locked a folder with `hold`. This creates no file."""
    if fcntl is None:
        return False
    try:
        file = _taken(folder / name)
    except OSError:
        return False
    if file is not None:
        os.close(file)
    return file is None


def abandoned(folder: Path, name: str = LOCK) -> bool:
    """Whether no process has locked a folder with `hold`. False on systems without file locks, where this cannot be known."""
    return fcntl is not None and not in_use(folder, name)


def _taken(path: Path, flags: int = 0) -> int | None:
    """Lock a file and return its descriptor, or None if another process holds it."""
    while True:
        try:
            file = open_plain(path, os.O_RDWR | flags)
        except OSError as error:
            if not flags:
                raise
            raise CounterpoiseError(f"{path.parent} cannot be used: {path}: {error.strerror or error}.") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_ino == os.stat(path, follow_symlinks=False).st_ino:
                return file
        except BlockingIOError:
            os.close(file)
            return None
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(file)
            raise CounterpoiseError(f"{path} cannot be locked: {error.strerror or error}.") from None
        os.close(file)  # another process removed the folder and its lock in the meantime
