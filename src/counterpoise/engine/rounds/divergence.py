"""Tell failing training from a few failing clients, by counting distinct clients over several rounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

__all__ = ["Streak"]

_ROUNDS = 3
"""How many rounds in a row most updates must be NaN or infinite."""
_CLIENTS = 30
"""How many distinct clients must have sent such updates, unless they are most of the population."""
_SHARE = 0.9
"""The share of the distinct clients heard that must have sent such updates, unless they are most of the population.

A minority of broken clients hardly ever looks like that: if 48 % of all clients always send NaN and 30 clients are drawn
at random, the chance that 27 or more of them do is two in a million. It is smaller if more are drawn.
"""


@dataclass(frozen=True)
class Streak:
    """The current run of rounds in which most of the updates heard were NaN or infinite."""

    rounds: int = 0
    well: Mapping[int, bool] = field(default_factory=dict)
    """For each client heard in these rounds, whether its last update was finite."""

    def after(self, heard: Collection[int], failed: Collection[int]) -> Streak:
        """The streak after one more round; a round that heard nobody does not count."""
        if not heard:
            return self
        well = {client: client not in failed for client in heard}
        if 2 * sum(well.values()) >= len(well):
            return Streak()
        return Streak(self.rounds + 1, {**self.well, **well})

    @property
    def failed(self) -> int:
        """How many distinct clients have a last update that is NaN or infinite."""
        return sum(not well for well in self.well.values())

    def widespread(self, population: int) -> bool:
        """Whether so many clients fail that training itself must be the cause."""
        most = 2 * self.failed > max(population, len(self.well))
        many = self.failed >= max(_CLIENTS, _SHARE * len(self.well))
        return self.rounds >= _ROUNDS and (most or many)

    def sentence(self, population: int) -> str:
        """Why training has diverged; empty while a few clients could be the cause."""
        if not self.widespread(population):
            return ""
        return (
            f"Training diverged: in the last {self.rounds} rounds the updates of {self.failed} of the "
            f"{len(self.well)} clients heard were NaN or infinite. "
            "Lower the learning rate (local.optimizer.lr) and start the run anew."
        )
