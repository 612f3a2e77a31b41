"""A verdict on what a client claims or sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from counterpoise.errors import takes_only_its_options

__all__ = ["Action", "Verdict", "claiming"]

Action = Literal["accepted", "corrected", "warned", "excluded"]
"""The claim stands (accepted), another count replaces it (corrected), it is found false but still used (warned), or its
client is left out (excluded)."""


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

    @property
    def judged(self) -> bool:
        """Whether there was a measure to judge the client by. Without one, its claim is accepted unseen."""
        return self.z is not None or self.action != "accepted"

    @property
    def about_claim(self) -> bool:
        """Whether it is about the claim. With evidence but without counts, it is about the client's updates."""
        return self.estimated is not None or self.z is None

    def concerns(self, client: int) -> str:
        """What the verdict is about, for a sentence."""
        return f"the claim of client {client} to {self.claimed:g} samples" if self.about_claim else f"client {client}"

    def told(self, client: int) -> str:
        """The verdict as a line. A reason that begins with the claim does not repeat it here.

        >>> Verdict(90, 40.0, 30.0, 50.0, 9.0, "corrected", claiming(90) + "its update suggests 40").told(3)
        'the claim of client 3 to 90 samples is corrected: its update suggests 40'
        """
        reason = self.reason.removeprefix(claiming(self.claimed)) if self.about_claim else self.reason
        return f"{self.concerns(client)} is {self.action}: {reason}"


def claiming(count: float) -> str:
    """The beginning of a reason that must be understood without its verdict."""
    return f"it claims {count:g} samples, but "
