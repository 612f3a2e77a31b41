"""How much memory there is, sizes in words, and whether an error means that memory ran out."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["bytes_in_words", "machine_memory", "out_of_memory"]

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files that hold a container's memory limit."""


def machine_memory() -> int | None:
    """The most bytes of memory that this process could use: the machine's or its container's. None if unknown."""
    found = []
    with contextlib.suppress(AttributeError, OSError, ValueError):  # not a POSIX system
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for place in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no limit
            found.append(int(Path(place).read_text(encoding="ascii")))
    return min((size for size in found if size > 0), default=None)


def bytes_in_words(count: float) -> str:
    """A size for people.

    >>> bytes_in_words(1_500_000_000)
    '1.5 GB'
    >>> bytes_in_words(999_600)
    '1 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB" if count < 1e6 else f"{count:.1e} TB"


def out_of_memory(error: Exception) -> bool:
    """Whether an error from Python, NumPy or torch says that memory ran out."""
    return isinstance(error, MemoryError) or any(
        words in str(error) for words in ("can't allocate memory", "out of memory", "not enough memory")
    )
