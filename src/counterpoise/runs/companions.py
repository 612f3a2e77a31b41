"""The batches of runs that a run trained in, as ``batch.json`` in its folder notes them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterpoise.errors import CounterpoiseError
from counterpoise.runs.contents import BATCH
from counterpoise.runs.files import replace_text
from counterpoise.runs.kept import Batches, checked
from counterpoise.runs.ledger import SCHEMA
from counterpoise.texts import parse_json, read_text

if TYPE_CHECKING:
    from counterpoise.engine.rounds.simulation import Batch

__all__ = ["note_batch", "noted_batches", "worded_batches"]


def noted_batches(folder: Path) -> list[dict[str, Any]]:
    """The batches that a run trained in, each with its first round.

    A batch of one run means that the run trained alone, as it did before the first batch. The list is empty if it always
    trained alone, or if the file is damaged.
    """
    with contextlib.suppress(CounterpoiseError, FileNotFoundError, NotADirectoryError):
        path = folder / BATCH
        found = checked(Batches, parse_json(read_text(path), str(path)), str(path))
        return [one.model_dump(exclude_none=True) for one in found.batches]
    return []


def note_batch(folder: Path, batch: Batch | None, round: int) -> None:
    """Note the batch that a run trains in from a round on; None if it trains alone.

    The batch is no setting of the run: it changes its numbers only by rounding.
    """
    kept = [one for one in noted_batches(folder) if one["from_round"] < round]  # a resumed run repeats later rounds
    now = (
        {"runs": 1} if batch is None else {name: value for name, value in batch._asdict().items() if value is not None}
    )
    last = kept[-1] if kept else {"from_round": 1, "runs": 1}
    if last != {"from_round": last["from_round"], **now}:
        kept.append({"from_round": round, **now})
    if kept or (folder / BATCH).exists():
        replace_text(folder / BATCH, json.dumps({"schema": SCHEMA, "batches": kept}) + "\n")


def worded_batches(batches: list[dict[str, Any]]) -> list[str]:
    """A line for each batch.

    >>> worded_batches([{"from_round": 1, "runs": 3, "clients": 30, "backend": "batched"}, {"from_round": 7, "runs": 1}])
    ['from round 1: in one batch with 2 other runs, 30 clients in all, backend batched', 'from round 7: alone']
    """
    return [f"from round {one['from_round']}: {_worded(one)}" for one in batches]


def _worded(batch: dict[str, Any]) -> str:
    others = batch["runs"] - 1
    if not others:
        return "alone"
    facts = [f"{batch[name]} clients in all" for name in ("clients",) if name in batch]
    facts += [f"{name} {batch[name]}" for name in ("backend", "chunk") if name in batch]
    facts += ["compiled"] if batch.get("compile") else []
    return ", ".join([f"in one batch with {others} other run{'s' if others > 1 else ''}", *facts])
