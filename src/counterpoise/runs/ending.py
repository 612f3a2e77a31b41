"""How a run ended that trained nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from counterpoise.engine.simulation import RoundRecord

__all__ = ["untrained"]


def untrained(records: Sequence[RoundRecord]) -> str:
    """Why no round of a run changed the model, in a sentence; empty if one did, or if there was no round.

    The reason is the most frequent one, and so is what was said of the clients that were left out.
    """
    if not records or not all(record.outcome.skipped for record in records):
        return ""
    skipped = Counter(record.outcome.skipped for record in records)
    said = Counter(why for record in records for why in record.outcome.excluded.values())
    (why, times), count = skipped.most_common(1)[0], len(records)
    rounds = "its only round was skipped" if count == 1 else f"all {count} rounds were skipped"
    often = "" if times == count else f" in {times} of them"
    clients = f" (of clients left out: {said.most_common(1)[0][0]})" if said else ""
    return f"No round trained the model: {rounds},{often} because {why}{clients}."
