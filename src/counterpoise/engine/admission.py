"""What the server accepts of what it was sent. Everything else is left out, with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from statistics import median_low

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError, Diverged
from counterpoise.method import Cohort

__all__ = ["Limits", "admit", "finite"]


@dataclass(frozen=True)
class Limits:
    """Bounds on a client's reply."""

    norm_ratio: float = 1000.0
    """How many times the median of the cohort an update's norm, or its number of steps, may be; infinity turns this off.

    The median of norms is over clients that moved, so that a cohort at rest does not exclude one that is not."""
    max_examples: int = 2**53
    """The largest data count a client may claim; by default the largest that can be counted exactly."""

    def __post_init__(self) -> None:
        if not isinstance(self.norm_ratio, int | float) or not self.norm_ratio > 1:
            raise CounterpoiseError(f"limits: norm_ratio must be above 1, not {self.norm_ratio!r}.")
        if type(self.max_examples) is not int or self.max_examples < 1:
            raise CounterpoiseError(f"limits: max_examples must be at least 1, not {self.max_examples!r}.")


def finite(values: Tensor) -> Tensor:
    """``[C]`` whether all numbers of each row are finite, in one pass over them."""
    if values.ndim == 1:
        return values.isfinite()
    if not values.numel():
        return values.isfinite().flatten(1).all(1)
    low, high = values.flatten(1).aminmax(dim=1)
    return low.isfinite() & high.isfinite()


def admit(cohort: Cohort, limits: Limits) -> tuple[Cohort, dict[int, str], dict[int, int | float]]:
    """The clients whose reply is usable, why each of the others is not, and what all of them claim to hold.

    Exclusion must not hide a learning rate that is too high: when most updates are not finite,
    training has diverged.
    """
    if not len(cohort):
        return cohort, {}, {}
    reports = {
        f"its report {part}/{name} is not finite": ~finite(values)
        for part, named in cohort.reports.items()
        for name, values in named.items()
    }
    seen = (cohort.examples, cohort.steps, torch.linalg.vector_norm(cohort.updates, dim=1), *reports.values())
    # One wait for a GPU.
    claims, steps, norms, *unreadable = torch.stack([row.double() for row in seen]).tolist()
    broken = [False] * len(cohort)
    if not all(map(isfinite, norms)):  # infinite also where only the squares are: far too long, then
        broken = (~finite(cohort.updates)).tolist()
    moved = [norm for norm, bad in zip(norms, broken, strict=True) if norm > 0 and not bad]
    longest = limits.norm_ratio * median_low(moved or [0.0])
    if 2 * sum(broken) > len(cohort):
        raise Diverged(
            f"Training diverged: the updates of {sum(broken):.0f} of {len(cohort)} clients are not finite. "
            "Lower the learning rate (local.optimizer.lr)."
        )
    usual = median_low([k for k in steps if k > 0] or [1.0])
    bad = {
        "its update holds NaN or infinity": broken,
        "the data count it claims is not a number": [not isfinite(n) for n in claims],
        "it claims no data": [n <= 0 for n in claims],
        "the data count it claims is not whole": [not n.is_integer() for n in claims],
        "the number of steps it reports is not a positive whole number": [
            not (k > 0 and k.is_integer()) for k in steps
        ],
        f"it reports over {limits.norm_ratio:g} times as many steps as the cohort's median": [
            k > limits.norm_ratio * usual for k in steps
        ],
        f"it claims more than the {limits.max_examples} samples allowed": [n > limits.max_examples for n in claims],
        **dict(zip(reports, unreadable, strict=True)),
        f"its update is over {limits.norm_ratio:g} times as long as the cohort's median": [
            norm > longest for norm in norms
        ],
    }
    reasons: dict[int, str] = {}
    for reason, row in bad.items():
        for client, is_bad in zip(cohort.ids, row, strict=True):
            if is_bad:
                reasons.setdefault(client, reason)
    claimed = {client: int(n) if n.is_integer() else n for client, n in zip(cohort.ids, claims, strict=True)}
    if not reasons:
        return cohort, reasons, claimed
    good = torch.tensor([client not in reasons for client in cohort.ids], device=cohort.updates.device)
    return cohort.keep(good), reasons, claimed
