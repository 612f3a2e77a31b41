"""What one round showed, and the names under which a run keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from counterpoise.verdict import Verdict

__all__ = ["COSTS", "MOST_ROUNDS", "RESERVED", "RESERVED_NOTES", "Outcome", "RoundRecord"]

MOST_ROUNDS = 10**9
"""More rounds are taken for a mistake."""

COSTS = ("seconds", "bytes_up", "bytes_down", "bytes_server", "bytes_clients", "memory")
"""What a round cost; each is a field of its record, a key of ``metrics.jsonl`` and a column of frames."""
RESERVED = (
    "round",
    "loss",
    "train_loss",
    *COSTS,
    "skipped",
    "facts",
    "schema",
    "clients",
    "excluded",
    "method",
    "seed",
)
"""Names that a user's metric cannot have, because the run's record or its frames use them."""
RESERVED_NOTES = (
    "method",
    "seed",
    "round",
    "client",
    "name",
    "heard",
    "liar",
    "claimed",
    "weight",
    "excluded",
    "contribution",
)
"""Names that a part's note cannot have, because the frame of clients has these columns. For the same reason no note's
name may begin with ``client_``."""


@dataclass(frozen=True)
class Outcome:
    """What happened in a round on the server, client by client."""

    claims: Mapping[int, int | float]
    """The data count that each client heard claims."""
    weights: Mapping[int, float] | None
    """The effective weight of each client heard: the factor of its update in the combined one. None if the rule has no
    weights."""
    excluded: Mapping[int, str] = field(default_factory=dict)
    """The clients left out, each with the reason."""
    skipped: str = ""
    """Why the model was left as it was; empty if it was updated."""
    notes: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """By name, what parts noted about each client, and its ``contribution`` to the server's step."""
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)
    """What a trust part decided about each client."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Named numbers of the round as a whole."""


@dataclass(frozen=True)
class RoundRecord:
    """What one round showed."""

    round: int
    cohort: tuple[int, ...]
    """The clients that were asked."""
    outcome: Outcome
    """What the server made of their replies."""
    metrics: Mapping[str, float]
    """Of the server's new model: ``train_loss`` and, in rounds that are evaluated, ``loss``, ``accuracy``, ..."""
    clients: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """In rounds that are evaluated: the metrics of each client on its held-out samples."""
    seconds: float = 0.0
    """From the opening of the round to its record, without what nodes of a deployment take to evaluate."""
    bytes_up: int = 0
    bytes_down: int = 0
    memory: int = 0
    """The most bytes held so far, on the GPU if there is one, otherwise by the process; 0 if that is unknown."""
    liars: tuple[int, ...] = ()
    """The clients of the cohort that an adversary played in this round, to compare with the verdicts."""
    bytes_server: int = 0
    """What the method keeps on the server besides the model: its state, and its records of the clients seen."""
    bytes_clients: int = 0
    """What the method keeps on the clients seen, all together."""
