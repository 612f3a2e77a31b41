"""Which lines of a user's own code, and which hook of which part, an error came from."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

__all__ = ["call_hook", "hook_of", "is_ours", "own_frames", "place_of"]

_OURS = str(Path(__file__).resolve().parent)
_INSTALLED = tuple(sorted({sysconfig.get_path(name) for name in ("purelib", "platlib")}))
_PYTHON = tuple(sorted({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}))


def is_ours(file: str) -> bool:
    """Whether code is this package's, torch's, Python's or made while running: nobody looks for a mistake there."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    ours = (_OURS, "<") if torch is None else (_OURS, "<", str(Path(torch).parent))
    return file.startswith(ours) or (file.startswith(_PYTHON) and not file.startswith(_INSTALLED))


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The lines of the user's own code that led to an error; if there are none, those of installed packages."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_ours(frame.filename)]
    return [frame for frame in frames if not frame.filename.startswith(_INSTALLED)] or frames


def place_of(error: BaseException) -> str:
    """The function, file and line of the user's own code that failed; empty if it was not in the user's code."""
    frames = own_frames(error)
    return f"{frames[-1].name} in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""


def call_hook(part: Any, name: str, *given: Any) -> Any:
    """What a part's hook returns. An error in it is marked, so that whoever reports it can name part and hook."""
    try:
        return getattr(part, name)(*given)
    except Exception as error:
        error.counterpoise_hook = f"part {part.name}: its hook {name}"  # type: ignore[attr-defined]
        raise


def hook_of(error: BaseException) -> str:
    """The part and the hook that an error was raised in; empty if it was in none."""
    return getattr(error, "counterpoise_hook", "")
