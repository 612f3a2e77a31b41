"""Why a run failed, kept in its folder as ``failure.txt``."""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path

from counterpoise.errors import CounterpoiseError
from counterpoise.runs.contents import FAILURE
from counterpoise.runs.files import Unwritten, replace_text
from counterpoise.runs.removal import is_ours

__all__ = ["forget_failure", "keep_error", "keep_failure"]


def keep_error(folder: Path | None, error: Exception) -> str:
    """One sentence that says why a run failed. Its folder, if any, keeps it, and the traceback if other code failed."""
    ours = isinstance(error, CounterpoiseError)
    sentence = " ".join((str(error) if ours else f"{type(error).__name__}: {error}").split())
    own = not ours or error.__cause__ is not None  # an error in the user's own code is worth its traceback
    more = "".join(traceback.format_exception(error)) if own else ""
    if folder is not None and keep_failure(folder, f"{sentence}\n{more}") and own:
        where = f"The whole traceback is in {folder / FAILURE}."
        if where not in getattr(error, "__notes__", ()):  # a comparison keeps an error that its run has already kept
            error.add_note(where)
    return sentence


def forget_failure(folder: Path) -> None:
    """Remove what an earlier attempt at a run left; in a folder that is not ours, such a file is not ours either."""
    if folder.is_dir() and is_ours(folder):
        (folder / FAILURE).unlink(missing_ok=True)


def keep_failure(folder: Path, text: str) -> bool:
    """Write why a run failed into its folder, if that is ours and writable. Callers report the reason anyway."""
    with contextlib.suppress(OSError, Unwritten):
        folder.mkdir(parents=True, exist_ok=True)
        if is_ours(folder):
            replace_text(folder / FAILURE, text)
            return True
    return False
