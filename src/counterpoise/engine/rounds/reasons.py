"""Why a reply is not admitted, in words, and which clients it happened to."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["BROKEN", "ENORMOUS", "LONG", "UNUSUAL", "broken", "too_long"]

BROKEN = "its update holds NaN or infinity"
LONG = "times as long as the cohort's median"
UNUSUAL = "times as long as the median of the last rounds"
ENORMOUS = "times as long as the model"


def broken(excluded: Mapping[int, str]) -> set[int]:
    """The clients left out for NaN or infinity."""
    return {client for client, reason in excluded.items() if reason == BROKEN}


def too_long(excluded: Mapping[int, str]) -> set[int]:
    """The clients left out for the length of their reply."""
    return {client for client, reason in excluded.items() if reason.endswith((LONG, UNUSUAL, ENORMOUS))}
