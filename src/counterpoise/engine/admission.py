"""What the server accepts of what it was sent. Everything else is left out, with a reason."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from statistics import median_low

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Cohort

__all__ = ["BROKEN", "Limits", "admit", "finite"]

BROKEN = "its update holds NaN or infinity"


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
    """The clients whose reply is usable, why each of the others is not, and what all of them claim to hold."""
    if not len(cohort):
        return cohort, {}, {}
    reports = {
        f"its report {part}/{name} is not finite": ~finite(values)
        for part, named in cohort.reports.items()
        for name, values in named.items()
    }
    seen = (cohort.examples, cohort.steps, torch.linalg.vector_norm(cohort.updates, dim=1), *reports.values())
    # One wait for a GPU.
    claims, steps, norms, *unreadable = torch.stack([row.double() for row in seen]).detach().cpu().numpy()
    broken = np.zeros(len(cohort), bool)
    if not np.isfinite(norms).all():  # infinite also where only the squares are: far too long, then
        broken = (~finite(cohort.updates)).cpu().numpy()
    longest = limits.norm_ratio * _middle(norms[(norms > 0) & ~broken], 0.0)
    most = limits.norm_ratio * _middle(steps[steps > 0], 1.0)
    bad = {
        BROKEN: broken,
        "the data count it claims is not a number": ~np.isfinite(claims),
        "it claims no data": claims <= 0,
        "the data count it claims is not whole": ~_whole(claims),
        "the number of steps it reports is not a positive whole number": ~_whole(steps) | (steps <= 0),
        f"it reports over {limits.norm_ratio:g} times as many steps as the cohort's median": steps > most,
        f"it claims more than the {limits.max_examples} samples allowed": claims
        > float(min(limits.max_examples, sys.float_info.max)),
        **dict(zip(reports, unreadable, strict=True)),
        f"its update is over {limits.norm_ratio:g} times as long as the cohort's median": norms > longest,
    }
    reasons: dict[int, str] = {}
    for reason, rows in bad.items():
        for place in rows.nonzero()[0]:
            reasons.setdefault(cohort.ids[place], reason)
    claimed = {c: int(n) if n.is_integer() else n for c, n in zip(cohort.ids, claims.tolist(), strict=True)}
    if not reasons:
        return cohort, reasons, claimed
    good = torch.tensor([client not in reasons for client in cohort.ids], device=cohort.updates.device)
    return cohort.keep(good), reasons, claimed


def _whole(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    whole: npt.NDArray[np.bool_] = np.isfinite(values) & (values == np.floor(values))
    return whole


def _middle(values: npt.NDArray[np.float64], otherwise: float) -> float:
    return median_low(values.tolist()) if len(values) else otherwise
