"""Which pieces of a plan a worker is given at once: those that are likely to train as one batch.

This is guessed from their configurations alone. The worker then decides by the runs themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from counterpoise.comparisons.plan import Piece
from counterpoise.engine.clients.likeness import alike, client_hooks
from counterpoise.methods import METHODS
from counterpoise.runs.build import make
from counterpoise.runs.config import parse

__all__ = ["batches"]

_MAY_DIFFER = ("seed", "rounds", "cohort", "method", "metrics", "adversary", "evaluation", "limits", "stop")


def batches(pieces: Sequence[Piece], workers: int, together: int | None) -> list[list[Piece]]:
    """The pieces in lists for workers, with at most `together` in each.

    A group that can train as one batch is cut only if all workers together then end earlier. Methods with much to do on
    clients come first: a long list that begins last would keep one worker busy while the others have ended.
    """
    groups: list[tuple[Any, list[Piece]]] = []
    for piece in pieces:
        work = _work(piece)
        fits = (group for other, group in groups if alike(other, work))
        if (group := next(fits, None)) is None:
            groups.append((work, group := []))
        group.append(piece)
    groups.sort(key=lambda group: -len(group[1]) * _weight(group[0][-1]))
    whole = min(max(len(group) for _, group in groups), together or len(pieces)) if groups else 1
    lengths = {min(whole, -(-len(pieces) // parts)) for parts in range(1, workers + 1)}
    cuts = [[(_weight(work[-1]), part) for work, group in groups for part in _cut(group, most)] for most in lengths]
    best = min(cuts, key=lambda parts: (_longest(parts, workers), len(parts)))
    return [part for _, part in best]


def _longest(parts: Sequence[tuple[int, Sequence[Piece]]], workers: int) -> int:
    """How long the busiest worker takes if each takes the next list as soon as it is free."""
    busy = [0] * workers
    for weight, part in parts:
        busy[busy.index(min(busy))] += weight * len(part)
    return max(busy)


def _weight(hooks: Sequence[Sequence[Any]]) -> int:
    """A guess at how long a method takes on clients: the number of its client hooks and settings that are set, plus 1."""
    return 1 + sum(bool(value) for part in hooks for value in part)


def _cut(group: Sequence[Piece], most: int) -> Iterator[list[Piece]]:
    """A group in parts of nearly equal length, at most `most`."""
    parts = -(-len(group) // most)
    for part in range(parts):
        yield list(group[part * len(group) // parts : (part + 1) * len(group) // parts])


def _work(piece: Piece) -> list[Any]:
    """What pieces in one batch have in common: their data's name, model, local training and client-side hooks."""
    config = parse(piece.values, piece.place)
    values: dict[str, Any] = config.model_dump(exclude={*_MAY_DIFFER, "paper"})
    local, data, engine = values.pop("local"), values.pop("data"), values.pop("engine")
    optimizer = {name: value for name, value in local.pop("optimizer").items() if name != "lr"}
    local.pop("schedule")
    engine.pop("store_gib")
    return [values, local, optimizer, data["name"], data["scaling"], engine, client_hooks(make(METHODS, config.method))]
