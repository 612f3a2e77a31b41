"""A verdict on what a client claims or sends."""

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
    """A trust part's decision about one client in one round: about the count it claims, or about its updates."""

    claimed: float
    estimated: float | None
    """The count that the evidence supports; None if there is no evidence."""
    low: float | None
    high: float | None
    """The interval of counts that the deciding evidence cannot tell apart: ``low < n <= high``."""
    z: float | None
    """How far the claim lies above what the evidence supports, or how far the updates lie from the others', in standard
    deviations."""
    action: Action
    reason: str = ""

    def concerns(self, client: int) -> str:
        """What the verdict is about, for a sentence. One with evidence but without counts is about the client."""
        if self.estimated is None and self.z is not None:
            return f"client {client}"
        return f"the claim of client {client} to {self.claimed:g} samples"
