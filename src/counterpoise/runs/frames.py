"""A run's records as tidy pandas frames: one row per observation, one column per variable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from counterpoise.engine.rounds.records import COSTS, RoundRecord
from counterpoise.errors import CounterpoiseError, unknown
from counterpoise.verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["frame"]


def frame(
    records: Sequence[RoundRecord], of: str = "rounds", names: Sequence[str] | None = None, **same: Any
) -> pd.DataFrame:
    """A row for each round, for each client in each round (``of="clients"``) or for each verdict (``of="verdicts"``).

    `names` are the clients' names, which go beside their numbers. `same` gives columns with one value in every row,
    such as the method and the seed, so that the frames of several runs can be concatenated. A value that was not
    measured is missing.
    """
    if of not in _ROWS:
        raise unknown("frame", of, _ROWS, "of a run")
    try:
        import pandas as pd
    except ImportError:
        raise CounterpoiseError("Frames need pandas. Install it with: pip install pandas") from None
    rows = [{**same, "round": record.round, **_named(row, names)} for record in records for row in _ROWS[of](record)]
    return pd.DataFrame(rows, columns=None if rows else [*same, "round", *_ALWAYS.get(of, ())])


def _named(row: dict[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    """A client's row with its name after its number."""
    if names is None or "client" not in row:
        return row
    client = row["client"]
    return {"client": client, "name": names[client] if client < len(names) else None, **row}


def _round(record: RoundRecord) -> Iterator[dict[str, Any]]:
    yield {
        **record.metrics,
        "clients": len(record.cohort),
        "excluded": len(record.outcome.excluded),
        "skipped": record.outcome.skipped or None,
        **{cost: getattr(record, cost) for cost in COSTS},
        **{f"fact_{name}": value for name, value in record.outcome.facts.items()},
    }


def _clients(record: RoundRecord) -> Iterator[dict[str, Any]]:
    """Every client of the cohort, and every client that was measured."""
    outcome = record.outcome
    heard = set(record.cohort)
    columns: dict[str, Mapping[int, Any]] = {
        "claimed": outcome.claims,
        "weight": outcome.weights or {},
        "excluded": outcome.excluded,
        **outcome.notes,
        **{f"client_{name}": values for name, values in record.clients.items()},
    }
    for client in sorted({*heard, *(c for values in columns.values() for c in values)}):
        found = {name: values.get(client) for name, values in columns.items()}
        yield {"client": client, "heard": client in heard, "liar": client in record.liars, **found}


def _verdicts(record: RoundRecord) -> Iterator[dict[str, Any]]:
    for client, verdict in record.outcome.verdicts.items():
        yield {"client": client, "liar": client in record.liars, **asdict(verdict)}


_ROWS: dict[str, Callable[[RoundRecord], Iterator[dict[str, Any]]]] = {
    "rounds": _round,
    "clients": _clients,
    "verdicts": _verdicts,
}
_ALWAYS = {
    "clients": ("client", "heard", "liar", "claimed", "weight", "excluded"),
    "verdicts": ("client", "liar", *(field.name for field in fields(Verdict))),
}
"""Columns of a frame without rows, so that selecting from it gives an empty result, not an error."""
