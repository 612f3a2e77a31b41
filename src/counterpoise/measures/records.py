"""What the measures need from a round's record; `counterpoise.engine.RoundRecord` is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

__all__ = ["Curve", "Outcome", "Record"]

Curve = list[tuple[int, float]]
"""``(round, value)`` of the rounds that measured something."""


class Outcome(Protocol):
    """What the server made of a round."""

    @property
    def weights(self) -> Mapping[int, float] | None:
        """The weight of every client heard; None for a rule without weights."""

    @property
    def notes(self) -> Mapping[str, Mapping[int, float]]:
        """Named numbers per client, such as a reliability."""

    @property
    def facts(self) -> Mapping[str, float]:
        """Named numbers of the round as a whole, such as an epsilon."""

    @property
    def verdicts(self) -> Mapping[int, Any]:
        """The verdicts on clients' claims; `counterpoise.method.Verdict` is one."""


class Record(Protocol):
    """One round."""

    @property
    def round(self) -> int: ...

    @property
    def outcome(self) -> Outcome: ...

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the server's model, if measured."""

    @property
    def clients(self) -> Mapping[str, Mapping[int, float]]:
        """Metrics on each client's held-out part, if measured: the server's model, and as ``personal_...`` its own."""

    @property
    def liars(self) -> Sequence[int]:
        """Who lied, if known."""

    @property
    def seconds(self) -> float: ...

    @property
    def bytes_up(self) -> int: ...

    @property
    def bytes_down(self) -> int: ...

    @property
    def memory(self) -> int: ...
