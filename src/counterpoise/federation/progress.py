"""A progress bar for data that is fetched or read. It is shown only if standard error is a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from counterpoise.texts import clean

__all__ = ["bar"]


class _Bar:
    """One line on standard error, at most ten times a second."""

    def __init__(self, name: str, total: int | None, unit: str, size: float | None) -> None:
        self.name, self.total, self.unit, self.size, self.last = clean(name), total, unit, size, 0.0

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if now - self.last < 0.1 and done != self.total:
            return
        self.last = now
        text = self._amount(done)
        if self.total:
            filled = 24 * done // self.total
            text = f"{'━' * filled}{'╌' * (24 - filled)} {text} of {self._amount(self.total)}"
        sys.stderr.write(f"\r\x1b[K{self.name[:28]} {text} {self.unit}")
        sys.stderr.flush()

    def _amount(self, done: int) -> str:
        return str(done) if self.size is None else f"{done / self.size:.1f}"


@contextlib.contextmanager
def bar(name: str, total: int | None, unit: str, size: float | None = None) -> Iterator[Callable[[int], None]]:
    """A callback that shows how much is done, out of `total` if that is known; `size` is how much a unit is."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    try:
        yield _Bar(name, total, unit, size)
    finally:
        sys.stderr.write("\r\x1b[K")
