"""Track which part made a round's weights and its new model, and refuse a part that would undo or repeat that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Method, Part, Round
from counterpoise.parts.weighing import refuse_weights

__all__ = ["Trail"]

_EARLY = ("local", "upload", "trust")
"""Slots before `weigh`, which would overwrite weights that were made there."""


class Weights(NamedTuple):
    """The part that made weights, the clients that they are for, and the weights."""

    part: str
    clients: tuple[int, ...]
    values: Tensor


class Trail(NamedTuple):
    """What parts made in this round so far."""

    early: Mapping[str, str]
    """For each part that acts before the slot weigh, its slot."""
    weights: tuple[Weights, ...] = ()
    """All weights made so far, in order."""
    mover: str = ""
    """The part that made the new model; empty until one has."""

    @classmethod
    def of(cls, method: Method) -> Trail:
        return cls({part.name: slot for slot in _EARLY for part in getattr(method, slot)})

    def after(self, part: Part, seen: Round, round: Round) -> Trail:
        """The trail after a part's turn; refuse a turn that undoes another part's work or repeats it."""
        weights, mover = self.weights, self.mover
        if round.weights is not seen.weights:
            if part.name in self.early:
                raise CounterpoiseError(
                    f"part {part.name} sets weights in the slot {self.early[part.name]}, and the slot weigh would "
                    "overwrite them. Put it there: .replacing(weigh=...)."
                )
            if round.weights is None:
                refuse_weights(seen, part.name)
            else:
                weights = (*weights, Weights(part.name, round.cohort.ids, round.weights))
        if round.model is not seen.model and not part.amends:
            if mover:
                raise CounterpoiseError(
                    f"part {part.name} changes the model that part {mover} has already made of the updates, so they "
                    f"would count twice. Put it in the place of {mover}: .replacing(update=...). If it only amends "
                    "the new model, declare amends=True."
                )
            mover = part.name
        return self._replace(weights=weights, mover=mover)

    def broken(self) -> str:
        """Which part first gave a client a weight that is NaN or infinite; empty if none did."""
        for part, clients, values in self.weights:
            wrong = (~values.isfinite()).view(len(clients), -1).any(1)
            if bool(wrong.any()):
                place = int(wrong.nonzero()[0])
                row = values[place].view(-1)
                others = f" and {int(wrong.sum()) - 1} more clients one like it" if int(wrong.sum()) > 1 else ""
                return f"part {part} gave client {clients[place]} the weight {float(row[~row.isfinite()][0])}{others}"
        return ""
