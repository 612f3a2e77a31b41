"""How well verdicts tell liars from honest clients, and how close estimated counts come to the true ones."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Caught", "Detection", "auc", "caught_by_round", "count_error", "detection", "false_alarms", "recall", "roc"]


def recall(flagged: Sequence[bool], lies: Sequence[bool]) -> float:
    """The fraction of lies that were flagged; NaN without a lie."""
    return _share(flagged, lies)


def false_alarms(flagged: Sequence[bool], lies: Sequence[bool]) -> float:
    """The fraction of honest claims that were flagged; NaN without one."""
    return _share(flagged, [not lie for lie in lies])


def _share(flagged: Sequence[bool], among: Sequence[bool]) -> float:
    chosen = [bool(f) for f, a in zip(flagged, among, strict=True) if a]
    return sum(chosen) / len(chosen) if chosen else math.nan


def auc(scores: Sequence[float], lies: Sequence[bool]) -> float:
    """The chance that a lie scores above an honest claim; a tie counts half. NaN unless there are both.

    >>> auc([0.1, 0.4, 0.35, 0.8], [False, False, True, True])
    0.75
    """
    values, truth = np.asarray(scores, dtype=float), np.asarray(lies, dtype=bool)
    if truth.all() or not truth.any():
        return math.nan
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]  # Mann and Whitney's statistic, from mean ranks
    positive = int(truth.sum())
    above = float(ranks[truth].sum()) - positive * (positive + 1) / 2
    return above / (positive * (len(truth) - positive))


def roc(scores: Sequence[float], lies: Sequence[bool]) -> list[tuple[float, float, float]]:
    """``(threshold, false alarms, recall)`` if claims that score at least the threshold were flagged, from none to all.

    Empty unless there are both lies and honest claims.

    >>> roc([0.1, 0.4, 0.35, 0.8], [False, False, True, True])[1:4]
    [(0.8, 0.0, 0.5), (0.4, 0.5, 0.5), (0.35, 0.5, 1.0)]
    """
    values, truth = np.asarray(scores, dtype=float), np.asarray(lies, dtype=bool)
    if truth.all() or not truth.any():
        return []
    order = np.argsort(-values, kind="stable")
    values, truth = values[order], truth[order]
    ends = np.flatnonzero(np.append(values[1:] != values[:-1], True))  # equal scores are flagged together
    alarms, found = np.cumsum(~truth)[ends] / (~truth).sum(), np.cumsum(truth)[ends] / truth.sum()
    return [(math.inf, 0.0, 0.0), *zip(values[ends].tolist(), alarms.tolist(), found.tolist(), strict=True)]


def count_error(estimated: Sequence[float], true: Sequence[float]) -> float:
    """The median relative error of estimated counts, ``|estimated - true| / true``."""
    guess, fact = np.asarray(estimated, dtype=float), np.asarray(true, dtype=float)
    real = np.isfinite(guess) & (fact > 0)
    return float(np.median(np.abs(guess[real] - fact[real]) / fact[real])) if real.any() else math.nan


class Detection(NamedTuple):
    """Verdicts against the truth, claim by claim and client by client."""

    claims: int
    recall: float
    false_alarms: float
    auc: float
    """With the absolute z-score as the score."""
    caught: float
    """The fraction of liars that were flagged at least once."""
    accused: float
    """The fraction of honest clients that were flagged at least once."""
    count_error: float
    """The `count_error` of the estimates; NaN if true counts are not given."""


def detection(
    verdicts: Iterable[Mapping[str, Any]],
    liars: Collection[int] | Collection[tuple[int, int]],
    counts: Mapping[int, float] | None = None,
) -> Detection:
    """How well a run's verdicts did, given who lied: clients, or ``(client, round)`` for those who lie at times.

    A verdict is a row with ``client``, ``round``, ``action`` (anything but ``accepted`` is a flag), and,
    if known, ``z`` and ``estimated``; `counts` are clients' true data counts.
    """
    rows = list(verdicts)
    lies = _lies(rows, liars)
    flagged = [row["action"] != "accepted" for row in rows]
    scored = [(abs(row["z"]), lie) for row, lie in zip(rows, lies, strict=True) if _number(row.get("z"))]
    guessed = [
        (row["estimated"], counts[row["client"]])
        for row in rows
        if counts is not None and row["client"] in counts and _number(row.get("estimated"))
    ]
    ever_lied = {row["client"] for row, lie in zip(rows, lies, strict=True) if lie}
    seen = {row["client"] for row in rows}
    ever_flagged = {row["client"] for row, flag in zip(rows, flagged, strict=True) if flag}
    return Detection(
        len(rows),
        recall(flagged, lies),
        false_alarms(flagged, lies),
        auc([s for s, _ in scored], [lie for _, lie in scored]),
        len(ever_flagged & ever_lied) / len(ever_lied) if ever_lied else math.nan,
        len(ever_flagged - ever_lied) / len(seen - ever_lied) if seen - ever_lied else math.nan,
        count_error([g for g, _ in guessed], [t for _, t in guessed]),
    )


class Caught(NamedTuple):
    """How many of the clients judged so far had been flagged after a round."""

    round: int
    caught: float
    """The fraction of liars that were flagged at least once; NaN until one is heard."""
    accused: float
    """The fraction of honest clients that were flagged at least once."""


def caught_by_round(
    verdicts: Iterable[Mapping[str, Any]], liars: Collection[int] | Collection[tuple[int, int]]
) -> list[Caught]:
    """`Detection.caught` and `Detection.accused` after each round. A client is a liar once it has lied."""
    rows = sorted(verdicts, key=lambda row: row["round"])
    seen: set[int] = set()
    lied: set[int] = set()
    flagged: set[int] = set()
    found = []
    for round, judged in groupby(zip(rows, _lies(rows, liars), strict=True), key=lambda pair: pair[0]["round"]):
        for row, lie in judged:
            seen.add(row["client"])
            if lie:
                lied.add(row["client"])
            if row["action"] != "accepted":
                flagged.add(row["client"])
        honest = seen - lied
        found.append(
            Caught(
                round,
                len(flagged & lied) / len(lied) if lied else math.nan,
                len(flagged & honest) / len(honest) if honest else math.nan,
            )
        )
    return found


def _lies(rows: Sequence[Mapping[str, Any]], liars: Collection[int] | Collection[tuple[int, int]]) -> list[bool]:
    lied = set(liars)
    return [row["client"] in lied or (row["client"], row.get("round")) in lied for row in rows]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not math.isnan(value)
