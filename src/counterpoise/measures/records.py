"""What the measures ask of a round's record; `counterpoise.engine.RoundRecord` is one."""

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
        """Of every client heard; None for a rule without weights."""

    @property
    def notes(self) -> Mapping[str, Mapping[int, float]]:
        """Named numbers per client, such as a reliability."""

    @property
    def verdicts(self) -> Mapping[int, Any]:
        """What was made of clients' claims; `counterpoise.method.Verdict` is one."""


class Record(Protocol):
    """One round."""

    @property
    def round(self) -> int: ...

    @property
    def outcome(self) -> Outcome: ...

    @property
    def metrics(self) -> Mapping[str, float]:
        """Of the server's model, where measured."""

    @property
    def clients(self) -> Mapping[str, Mapping[int, float]]:
        """On each client's held-out part, where measured: of the server's model, and as ``personal_...`` of the client's."""

    @property
    def liars(self) -> Sequence[int]:
        """Who did lie, where it is known."""

    @property
    def seconds(self) -> float: ...

    @property
    def bytes_up(self) -> int: ...

    @property
    def bytes_down(self) -> int: ...

    @property
    def memory(self) -> int: ...
