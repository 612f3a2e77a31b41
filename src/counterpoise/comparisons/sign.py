"""The sign by which workers on other machines know that the command which sent them is still at work.

It is a file in the comparison's folder, which all of them share. The command writes a fresh word into it and locks it.
Workers stop, with checkpoints, as soon as the word is gone or another one, or nobody holds the lock: after Ctrl-C, after
a kill, and when a later command has taken over.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from counterpoise.comparisons.contents import SIGN
from counterpoise.errors import CounterpoiseError
from counterpoise.runs.locks import abandoned, hold
from counterpoise.texts import read_text

__all__ = ["gone", "signed"]


@contextlib.contextmanager
def signed(folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Put up the sign. Yield its word, and a function that takes the sign down before the end."""

    def take_down() -> None:
        (folder / SIGN).unlink(missing_ok=True)

    busy = f"Another process is at work in {folder}: the folder is in use. Wait for it to end, or stop it."
    with hold(folder, busy, patience=5.0, name=SIGN) as file:
        word = secrets.token_hex(8)
        if file is None:  # no locks on this system
            (folder / SIGN).write_text(word, encoding="ascii")
        else:
            os.ftruncate(file, 0)
            os.write(file, word.encode())
        try:
            yield word, take_down
        finally:
            take_down()


def gone(folder: Path, word: str) -> bool:
    """Whether the command that put up this word has ended, or its folder cannot be seen from here."""
    try:
        return read_text(folder / SIGN) != word or abandoned(folder, SIGN)
    except (OSError, CounterpoiseError):
        return True
