"""One run: what it is made of, simulating and resuming it, the folder that keeps it, and reading that folder again."""

from counterpoise.runs.run import Run
from counterpoise.runs.simulate import resume, simulate

__all__ = ["Run", "resume", "simulate"]
