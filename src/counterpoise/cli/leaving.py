"""End the program early, with one sentence on standard error."""

from __future__ import annotations

from typing import NoReturn

from counterpoise.cli.screen import Console
from counterpoise.engine.backends.distributed import first_to_say

__all__ = ["leave"]


def leave(message: str, code: int) -> NoReturn:
    """Print why, and exit. If there are several ranks, only one prints."""
    if first_to_say():
        Console(stderr=True, soft_wrap=True).print(message, markup=False, highlight=False)
    raise SystemExit(code)
