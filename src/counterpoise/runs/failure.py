"""Why a run failed, kept in its folder as ``failure.txt``."""

from __future__ import annotations

import contextlib
from pathlib import Path

from counterpoise.runs.contents import FAILURE
from counterpoise.runs.files import Unwritten, replace_text
from counterpoise.runs.removal import is_ours

__all__ = ["keep_failure"]


def keep_failure(folder: Path, text: str) -> None:
    """Write why a run failed into its folder, if that is ours and writable. Callers report the reason anyway."""
    with contextlib.suppress(OSError, Unwritten):
        folder.mkdir(parents=True, exist_ok=True)
        if is_ours(folder):
            replace_text(folder / FAILURE, text)
