"""End the program early, with one sentence on standard error."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from counterpoise.cli.screen import print_error

__all__ = ["ended_by_signals", "leave"]


@contextlib.contextmanager
def ended_by_signals() -> Iterator[list[int]]:
    """Treat SIGTERM and a closed terminal like Ctrl-C, so that no process is left behind and the user is told.

    Yields a list with the signal that came; Ctrl-C's if none did. A signal that is ignored, as by `nohup`, stays so.
    """
    came: list[int] = [signal.SIGINT]

    def stop(number: int, frame: FrameType | None) -> None:
        came[0] = number
        raise KeyboardInterrupt

    heeded = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heeded}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave(message: str, code: int) -> NoReturn:
    """Print why, and exit. If there are several ranks, only one prints."""
    if _first_to_say():
        print_error(message)
    raise SystemExit(code)


def _first_to_say() -> bool:
    """Whether this process should say it; a process that is alone need not load torch to know."""
    if "RANK" not in os.environ:
        return True
    from counterpoise.engine.backends.distributed import first_to_say

    return first_to_say()
