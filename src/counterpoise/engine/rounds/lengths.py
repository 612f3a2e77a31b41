"""How long clients' latest replies were, so that a cohort with a hostile majority is not judged by itself alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_high

__all__ = ["Lengths"]

_CLIENTS = 100
"""How many clients are remembered, those heard last."""


@dataclass(frozen=True)
class Lengths:
    """The length of the latest reply of each client heard lately, whether or not it was admitted.

    A client counts once, however often it is drawn, so that a few cannot move the median; and lengths that have grown for
    most clients become usual by themselves.
    """

    latest: Mapping[str, Sequence[tuple[int, float, float]]] = field(default_factory=dict)
    """For each kind (an update, a report): client, learning rate and length, the latest last."""

    def usual(self, kind: str, lr: float, now: Mapping[int, float]) -> float:
        """The upper median of the lengths now and, for other clients, of ``l_i max(1, lr / lr_i)``; 0 if there are none.

        If the learning rate has risen since, lengths may rise with it. They need not fall with it: a control variate does not.
        """
        before = [
            length * max(1.0, lr / then) for client, then, length in self.latest.get(kind, ()) if client not in now
        ]
        lengths = [*before, *now.values()]
        return median_high(lengths) if lengths else 0.0

    def after(self, lr: float, now: Mapping[str, Mapping[int, float]]) -> Lengths:
        """With the lengths of one round more, by kind and client."""
        latest = dict(self.latest)
        for kind, lengths in now.items():
            others = [told for told in latest.get(kind, ()) if told[0] not in lengths]
            latest[kind] = tuple([*others, *((client, lr, length) for client, length in lengths.items())][-_CLIENTS:])
        return Lengths(latest)
