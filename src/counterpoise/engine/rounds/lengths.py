"""Remember how long clients' latest replies were, so that a hostile majority of one cohort cannot set the standard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_high

__all__ = ["Lengths"]

_CLIENTS = 100
"""Remember the clients that replied last, this many of them."""


@dataclass(frozen=True)
class Lengths:
    """The length of the latest reply of each client that replied recently, whether or not it was admitted.

    A client counts once, however often it is sampled, so that a few clients cannot move the median. If the replies of
    most clients grow longer, the median follows.
    """

    latest: Mapping[str, Sequence[tuple[int, float, float]]] = field(default_factory=dict)
    """For each kind of reply (the update, a report): client, learning rate and length, the latest last."""

    def usual(self, kind: str, lr: float, now: Mapping[int, float]) -> float:
        """The upper median of this round's lengths `now` and of other clients' ``l_i max(1, lr / lr_i)``; 0 if empty.

        If the learning rate has risen since client i replied, lengths may rise with it. If it has fallen, they may
        stay: the length of a control variate does not depend on it.
        """
        before = [
            length * max(1.0, lr / then) for client, then, length in self.latest.get(kind, ()) if client not in now
        ]
        lengths = [*before, *now.values()]
        return median_high(lengths) if lengths else 0.0

    def count(self, kind: str, now: Mapping[int, float]) -> int:
        """How many clients' lengths are known, including those of this round."""
        return len({client for client, _, _ in self.latest.get(kind, ())} | now.keys())

    def after(self, lr: float, now: Mapping[str, Mapping[int, float]]) -> Lengths:
        """Add a round's lengths, given by kind and client."""
        latest = dict(self.latest)
        for kind, lengths in now.items():
            others = [entry for entry in latest.get(kind, ()) if entry[0] not in lengths]
            latest[kind] = tuple([*others, *((client, lr, length) for client, length in lengths.items())][-_CLIENTS:])
        return Lengths(latest)
