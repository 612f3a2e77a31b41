"""Whether it is training that fails, or a few clients: told apart over several rounds and by distinct clients."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from counterpoise.engine.admission import BROKEN

__all__ = ["Streak"]

_ROUNDS = 3
"""How many rounds in a row most updates must be NaN or infinite."""
_CLIENTS = 30
"""How many distinct clients must have sent such updates; of a small population more than half of it.

Clients drawn at random from a population of which 40 % always send NaN come to this with a chance of about one in a
million a round (three clients a round); of a population below 60 a minority cannot come to it at all.
"""


@dataclass(frozen=True)
class Streak:
    """The latest rounds in a row in each of which most of the updates heard were NaN or infinite."""

    rounds: int = 0
    finite: Mapping[int, bool] = field(default_factory=dict)
    """For each client heard in them, whether its last update was finite."""

    def after(self, heard: Collection[int], excluded: Mapping[int, str]) -> Streak:
        """With one round more; a round that heard nobody says nothing."""
        if not heard:
            return self
        finite = {client: excluded.get(client) != BROKEN for client in heard}
        if 2 * sum(finite.values()) >= len(finite):
            return Streak()
        return Streak(self.rounds + 1, {**self.finite, **finite})

    def sentence(self, population: int) -> str:
        """Why training has diverged; empty while a few clients could be the cause."""
        broken = sum(not finite for finite in self.finite.values())
        enough = broken >= min(_CLIENTS, population // 2 + 1) and 2 * broken > len(self.finite)
        if self.rounds < _ROUNDS or not enough:
            return ""
        return (
            f"Training diverged: in the last {self.rounds} rounds the updates of {broken} of the {len(self.finite)} clients "
            "heard were NaN or infinite. Lower the learning rate (local.optimizer.lr) and start the run anew."
        )
