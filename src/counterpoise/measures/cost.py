"""What a run cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from counterpoise.measures.records import Record

__all__ = ["Cost", "cost"]


class Cost(NamedTuple):
    """The cost of a whole run."""

    rounds: int
    seconds: float
    bytes_up: int
    bytes_down: int
    peak_memory: int
    """The most bytes held at once: on the GPU if the run used one, otherwise by the process; 0 if unknown."""


def cost(records: Sequence[Record]) -> Cost:
    """Time, traffic and memory of the rounds."""
    return Cost(
        len(records),
        sum(r.seconds for r in records),
        sum(r.bytes_up for r in records),
        sum(r.bytes_down for r in records),
        max((r.memory for r in records), default=0),
    )
