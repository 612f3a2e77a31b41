"""One run: what it is made of, its rounds from beginning to end, the folder that keeps it, and reading that again."""

from counterpoise.runs.run import Run
from counterpoise.runs.simulate import resume, simulate

__all__ = ["Run", "resume", "simulate"]
