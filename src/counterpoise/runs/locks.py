"""One process at a time in a folder, where the system can see to it.

The lock is the system's, on the file ``.lock``, which is never written to: it ends with the process that holds it and
with those that inherited it.
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

__all__ = ["LOCK", "Busy", "hold", "in_use"]

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
    """Hold a folder, by its lock or by another of its files; yields the file descriptor.

    After `patience` seconds in vain, or as soon as waiting is `hopeless`, `sentence` says why not.
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
    """Whether another process holds a folder, as `hold` does. Nothing is left in one that never was held."""
    if fcntl is None:
        return False
    try:
        file = _taken(folder / name)
    except OSError:
        return False
    if file is not None:
        os.close(file)
    return file is None


def _taken(path: Path, flags: int = 0) -> int | None:
    """The lock on a file, or None if another process has it."""
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
        os.close(file)  # another process removed the folder meanwhile, and its lock with it
