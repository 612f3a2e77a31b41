"""One run: what it is made of, simulating and resuming it, the folder that keeps it, and reading that folder again."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from counterpoise.runs.run import Run
    from counterpoise.runs.starting import resume, simulate
else:
    from counterpoise.lazy import attach as _attach

    __getattr__, __dir__ = _attach(
        __name__, {"counterpoise.runs.run": "Run", "counterpoise.runs.starting": "resume simulate"}
    )

__all__ = ["Run", "resume", "simulate"]
