"""A run from beginning to end, kept in a folder, stopped and resumed."""

from counterpoise.runs.run import Run
from counterpoise.runs.simulate import resume, simulate

__all__ = ["Run", "resume", "simulate"]
