"""What a run cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from counterpoise.measures.records import Record

__all__ = ["Cost", "cost"]


class Cost(NamedTuple):
    """Of a whole run."""

    rounds: int
    seconds: float
    bytes_up: int
    bytes_down: int
    peak_memory: int
    """The most bytes held at once: of the GPU where the run used one, else of the process. 0 where it is not known."""


def cost(records: Sequence[Record]) -> Cost:
    """Time, traffic and memory of the rounds."""
    return Cost(
        len(records),
        sum(r.seconds for r in records),
        sum(r.bytes_up for r in records),
        sum(r.bytes_down for r in records),
        max((r.memory for r in records), default=0),
    )
