"""A verdict on what a client claims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from counterpoise.errors import takes_only_its_options

__all__ = ["Action", "Verdict"]

Action = Literal["accepted", "corrected", "warned", "excluded"]
"""The claim stands; another count replaces it; it is found false but still used; its client is left out."""


@takes_only_its_options()
@dataclass(frozen=True)
class Verdict:
    """A trust part's decision about one client's claim in one round."""

    claimed: float
    estimated: float | None
    """The count that the evidence supports; None if there is no evidence."""
    low: float | None
    high: float | None
    """The interval of counts that the deciding evidence cannot tell apart: ``low < n <= high``."""
    z: float | None
    """How far the claim lies above what the evidence supports, in standard deviations."""
    action: Action
    reason: str = ""
