"""Why a run failed, kept beside it as ``failure.txt``."""

from __future__ import annotations

import contextlib
from pathlib import Path

from counterpoise.runs.contents import FAILURE
from counterpoise.runs.files import Unwritten, replace_text
from counterpoise.runs.removal import is_ours

__all__ = ["keep_failure"]


def keep_failure(folder: Path, text: str) -> None:
    """Keep why a run failed beside it, if the folder is ours and can be written; the sentence is told in any case."""
    with contextlib.suppress(OSError, Unwritten):
        folder.mkdir(parents=True, exist_ok=True)
        if is_ours(folder):
            replace_text(folder / FAILURE, text)
