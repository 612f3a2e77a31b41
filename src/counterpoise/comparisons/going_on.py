"""How to go on with a comparison or a sweep that was stopped, in words."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from counterpoise.comparisons.conduct import open_pieces
from counterpoise.comparisons.plan import Plan
from counterpoise.own import folder_of
from counterpoise.runs.trust import own_names
from counterpoise.texts import counted

__all__ = ["how_far", "resuming"]


def how_far(folder: Path, plan: Plan) -> str:
    """How many runs of a plan that was stopped are done."""
    left, total = len(open_pieces(folder, plan)), len(plan.arms) * len(plan.seeds)
    return f"Stopped with {total - left} of {counted(total, 'run')} done."


def resuming(folder: Path, values: Any, words: Sequence[str] = ()) -> str:
    """The command that goes on; `values` are the configurations, which may name code of the user's own.

    `words` are more options. If this process has imported that code, its folder is named.

    >>> resuming(Path("runs/mine"), {"model": {"name": "my_project.models:net"}})
    'counterpoise resume runs/mine --trust FOLDER'
    """
    names = own_names(values)
    known = {os.path.relpath(home) for name in names if (home := folder_of(name)) is not None}
    trust = ["--trust", known.pop() if len(known) == 1 else "FOLDER"] if names else []
    return shlex.join(["counterpoise", "resume", str(folder), *words, *trust])
