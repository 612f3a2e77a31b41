"""The counter hash of `counterpoise.randomness` on plain integers, for which torch need not be loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from counterpoise.errors import CounterpoiseError

__all__ = ["FIRST", "GOLDEN", "LAST", "SECOND", "check_seed", "hashed", "integer", "purpose"]

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
SECOND = 0x94D049BB133111EB - (1 << 64)
LAST = (1 << 63) - 1
_ALL = (1 << 64) - 1


def check_seed(seed: object) -> None:
    """Refuse a seed that cannot be a word of the hash."""
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise CounterpoiseError(f"seed must be a whole number at least 0 and below 2^63, not {seed!r}.")


def purpose(name: str) -> int:
    """A fixed 63-bit number for a purpose's name, so that two purposes never share a stream."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


def integer(*words: int) -> int:
    """The hash of plain integers as a non-negative 63-bit integer, for seeding other generators."""
    return hashed(words) & LAST


def hashed(words: Sequence[int]) -> int:
    """The hash of plain integers as an unsigned word, in Python: a hundred times faster than with scalar tensors."""
    state = 0
    for word in words:
        state = ((state ^ word) + GOLDEN) & _ALL
        state = (state ^ state >> 30) * FIRST & _ALL
        state = (state ^ state >> 27) * SECOND & _ALL
        state ^= state >> 31
    return state
