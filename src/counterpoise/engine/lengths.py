"""How long replies were in earlier rounds, so that a cohort with a hostile majority is not judged by itself alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median_high

__all__ = ["Lengths"]

_ROUNDS = 11
"""How many rounds are remembered. The number is odd, so that most of them must be false to move their median."""


@dataclass(frozen=True)
class Lengths:
    """The middle length of the replies admitted in each of the last rounds."""

    rounds: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    """For each kind (an update, a report): pairs of learning rate and length, the latest last."""

    def usual(self, kind: str, lr: float) -> float:
        """The median of ``l_r max(1, lr / lr_r)`` over the rounds r remembered; infinity if there are none.

        If the learning rate has risen since, lengths may rise with it. They need not shrink with it: a control variate does not.
        """
        past = [length * max(1.0, lr / before) for before, length in self.rounds.get(kind, ())]
        return median_high(past) if past else inf

    def after(self, lr: float, middles: Mapping[str, float]) -> Lengths:
        """With one round more; a kind in which nobody moved says nothing."""
        new = {kind: (lr, middle) for kind, middle in middles.items() if middle > 0}
        return Lengths({**self.rounds, **{k: (*self.rounds.get(k, ()), pair)[-_ROUNDS:] for k, pair in new.items()}})
