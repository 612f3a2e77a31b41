"""Verdicts as they are recorded: what decided, the counts that it suggests, and a reason in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from counterpoise.method import Action, Verdict
from counterpoise.methods.feddua.constants import FEWEST_CLIENTS, HORIZON
from counterpoise.verdict import claiming

__all__ = ["Finding", "write_verdicts"]


class Finding(NamedTuple):
    """What the server found about each client's claim, ``[C]``."""

    z: Tensor
    estimated: Tensor
    """The count that the deciding evidence suggests."""
    low: Tensor
    high: Tensor
    """Counts ``low < n <= high`` would have looked the same: they take as many steps, or lie within the threshold."""
    by_update: Tensor
    """Whether the update decided, not the report."""
    by_memory: Tensor
    """Whether the average of several rounds decided."""
    over: Tensor
    """Whether the claim is too large."""
    under: Tensor
    """Whether the claim is too small."""
    excluded: Tensor
    claimed: Tensor
    verified: Tensor
    """The count that the round goes on with."""
    taken: Tensor
    """The estimate that a correction uses: `estimated`, or line 13's."""
    warnings: Tensor

    @property
    def stands(self) -> Tensor:
        """Whether later fits may use the claim."""
        return ~self.over & ~self.under & ~self.excluded


class _Row(NamedTuple):
    """One client's finding."""

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


def write_verdicts(
    ids: Sequence[int], finding: Finding, *, patience: int, enough: bool, by_counts: bool
) -> dict[int, Verdict]:
    """Write each client's row of the record. If the method ignores counts (not `by_counts`), none is corrected."""
    rows = [_Row(*row) for row in zip(*(column.tolist() for column in finding), strict=True)]
    return {i: _write_verdict(row, patience, enough, by_counts) for i, row in zip(ids, rows, strict=True)}


def _write_verdict(row: _Row, patience: int, enough: bool, by_counts: bool) -> Verdict:
    corrected = by_counts and row.claimed != row.verified
    action: Action = "corrected" if corrected else "warned" if row.over else "accepted"
    reason = f"fewer than {FEWEST_CLIENTS} clients have been seen" if not enough else _give_reason(row, corrected)
    z = row.z if enough else None
    estimated = row.taken if math.isfinite(row.taken) else None
    if row.excluded:
        action, reason = "excluded", f"{reason}; with {math.ceil(row.warnings)} warnings it is excluded"
        if not row.over:
            # This round decided nothing, so none of its intervals or scores is given as the cause.
            left = round((row.warnings - patience) * HORIZON)
            reason = (
                f"earlier rounds left it with {math.ceil(row.warnings)} warnings; "
                f"it is heard again after {'1 more claim that fits' if left == 1 else f'{left} more claims in a row that fit'}"
            )
            return Verdict(row.claimed, estimated, None, None, None, action, reason)
    if estimated is None:
        return Verdict(row.claimed, None, None, None, None, action, reason)
    return Verdict(row.claimed, estimated, row.low, row.high, z, action, reason)


def _give_reason(row: _Row, corrected: bool) -> str:
    if not math.isfinite(row.estimated):
        return "it did not move" + (f"; the largest claim that stands is {row.verified:g}" if corrected else "")
    if not row.over and not row.under:
        return ""
    what = "the update it sent" if row.by_update else "what it reports about its training"
    when = f"over its last rounds together (at most {HORIZON})" if row.by_memory else "in this round"
    reason = f"{claiming(row.claimed)}{what} {when} suggests {row.estimated:.3g}"
    if row.under and not corrected:
        return f"{reason}; a client may claim less than it holds"
    if row.taken != row.estimated:
        reason += f"; the factor it reports (line 13) gives {row.taken:.3g}"
    if corrected and row.verified < round(min(row.taken, row.claimed)):
        reason += f"; the largest claim that stands is {row.verified:g}"
    return reason
