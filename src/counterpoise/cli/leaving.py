"""End the program early, with one sentence on standard error."""

from __future__ import annotations

import os
from typing import NoReturn

from counterpoise.cli.screen import Console

__all__ = ["leave"]


def leave(message: str, code: int) -> NoReturn:
    """Print why, and exit. If there are several ranks, only one prints."""
    if _first_to_say():
        Console(stderr=True, soft_wrap=True).print(message, markup=False, highlight=False)
    raise SystemExit(code)


def _first_to_say() -> bool:
    """Whether this process should say it; a process that is alone need not load torch to know."""
    if "RANK" not in os.environ:
        return True
    from counterpoise.engine.backends.distributed import first_to_say

    return first_to_say()
