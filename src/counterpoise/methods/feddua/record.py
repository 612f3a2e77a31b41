"""Verdicts as they are recorded: what decided, the counts it speaks for, and a reason in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from counterpoise.method import Action, Verdict
from counterpoise.methods.feddua.sequential import HORIZON

__all__ = ["FEWEST", "Counts", "Finding", "verdicts"]

FEWEST = 5
"""Clients that must have been seen before a claim is judged."""


class Finding(NamedTuple):
    """What decides about each client's claim, ``[C]``."""

    z: Tensor
    estimated: Tensor
    """The count that it speaks for."""
    low: Tensor
    high: Tensor
    """The counts ``low < n <= high`` that would have looked the same: of as many steps, or within the threshold."""
    by_update: Tensor
    by_memory: Tensor
    """Whether it is the average of several rounds."""
    over: Tensor
    under: Tensor
    excluded: Tensor


class Counts(NamedTuple):
    """Of each client, ``[C]``."""

    claimed: Tensor
    verified: Tensor
    """What the round goes on with."""
    taken: Tensor
    """The estimate that a correction takes: the finding's, or line 13's."""
    warnings: Tensor


class _Row(NamedTuple):
    """One client's numbers."""

    z: float
    estimated: float
    low: float
    high: float
    by_update: bool
    by_memory: bool
    over: bool
    under: bool
    excluded: bool
    claimed: float
    verified: float
    taken: float
    warnings: float


def verdicts(
    ids: Sequence[int], finding: Finding, counts: Counts, *, patience: int, enough: bool, by_counts: bool
) -> dict[int, Verdict]:
    """The record's row for each client. If the method's rule ignores counts (not `by_counts`), nothing is corrected."""
    columns = [column.tolist() for column in (*finding, *counts)]
    rows = [_Row(*row) for row in zip(*columns, strict=True)]
    return {i: _verdict(row, patience, enough, by_counts) for i, row in zip(ids, rows, strict=True)}


def _verdict(row: _Row, patience: int, enough: bool, by_counts: bool) -> Verdict:
    corrected = by_counts and row.claimed != row.verified
    action: Action = "corrected" if corrected else "warned" if row.over else "accepted"
    reason = f"fewer than {FEWEST} clients have been seen" if not enough else _reason(row, corrected)
    z = row.z if enough else None
    estimated = row.taken if math.isfinite(row.taken) else None
    if row.excluded:
        action, reason = "excluded", f"{reason}; with {math.ceil(row.warnings)} warnings it is excluded"
        if not row.over:
            # Nothing of this round decided, so no interval and no score of this round is given as the cause.
            left = round((row.warnings - patience) * HORIZON)
            reason = (
                f"earlier rounds left it with {math.ceil(row.warnings)} warnings; it is heard again after {left} more rounds "
                "in a row with a claim that fits"
            )
            return Verdict(row.claimed, estimated, None, None, None, action, reason)
    if estimated is None:
        return Verdict(row.claimed, None, None, None, None, action, reason)
    return Verdict(row.claimed, estimated, row.low, row.high, z, action, reason)


def _reason(row: _Row, corrected: bool) -> str:
    if not math.isfinite(row.estimated):
        return "it did not move" + (f"; the largest claim that stands is {row.verified:g}" if corrected else "")
    if not row.over and not row.under:
        return ""
    what = "the update it sent" if row.by_update else "what it reports of its training"
    when = f"over its last rounds together (at most {HORIZON})" if row.by_memory else "in this round"
    reason = f"it claims {row.claimed:g} samples; {what} {when} speaks for {row.estimated:.3g}"
    if row.under and not corrected:
        return f"{reason}, and a client may weigh less than that"
    if row.taken != row.estimated:
        reason += f", by the factor it reports (line 13) {row.taken:.3g}"
    if corrected and row.verified < round(min(row.taken, row.claimed)):
        reason += f"; the largest claim that stands is {row.verified:g}"
    return reason
