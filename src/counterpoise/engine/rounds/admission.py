"""Which replies the server admits. It leaves out all others and gives a reason for each."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median_high
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from counterpoise.engine.rounds.lengths import Lengths
from counterpoise.engine.rounds.reasons import BROKEN, ENORMOUS, LONG, UNUSUAL
from counterpoise.errors import CounterpoiseError, takes_only_its_options
from counterpoise.local import Local
from counterpoise.method import Cohort

__all__ = ["Admitted", "Limits", "admit", "finite"]

_ENOUGH = 5
"""Lengths are compared with the model's only until those of this many clients are known."""


@takes_only_its_options()
@dataclass(frozen=True)
class Limits:
    """Bounds on a client's reply."""

    norm_ratio: float = 50.0
    """How many times longer than usual an update, or a report of the model's shape, may be; infinity turns this off.

    The server compares the length with the cohort's median and with the median over clients that replied recently; as
    long as few clients are known, also with the model's length. A client may report at most this many times the steps
    it was asked for.

    Medians are upper medians over the clients whose length is not zero. So of two clients neither is left out for being
    longer than the other, and a cohort in which most updates are zero does not exclude a client that moves.
    docs/adversaries.md says why 50."""
    max_examples: int = 2**53
    """The largest data count a client may claim; by default the largest that a float64 counts exactly."""

    def __post_init__(self) -> None:
        if not isinstance(self.norm_ratio, int | float) or not self.norm_ratio > 1:
            raise CounterpoiseError(f"limits: norm_ratio must be above 1, not {self.norm_ratio!r}.")
        if type(self.max_examples) is not int or self.max_examples < 1:
            raise CounterpoiseError(f"limits: max_examples must be at least 1, not {self.max_examples!r}.")


class Admitted(NamedTuple):
    """A round's replies after the server's checks, before any part sees them."""

    cohort: Cohort
    """The clients whose replies are admitted."""
    refused: dict[int, str]
    """All other clients, each with the reason why its reply is not admitted."""
    claims: dict[int, int | float]
    """The data count that each client claims, admitted or not."""
    lengths: Lengths
    """The lengths remembered, with those of this round."""


def finite(values: Tensor) -> Tensor:
    """``[C]``: whether all numbers in each row are finite, computed in one pass."""
    if values.ndim == 1:
        return values.isfinite()
    if not values.numel():
        return values.isfinite().flatten(1).all(1)
    low, high = values.flatten(1).aminmax(dim=1)
    return low.isfinite() & high.isfinite()


def admit(
    cohort: Cohort, limits: Limits, local: Local, round: int, past: Lengths, model: Tensor, population: int
) -> Admitted:
    """Compare replies with what was asked for, with one another, with earlier rounds and with the model.

    `local` says how clients were asked to train, `past` how long earlier replies were.
    """
    if not len(cohort):
        return Admitted(cohort, {}, {}, past)
    reports = {f"its report {part}/{name}": v for part, named in cohort.reports.items() for name, v in named.items()}
    update = "its update"
    long = {update: cohort.updates} | {k: v for k, v in reports.items() if v.shape == cohort.updates.shape}
    short = {what: values for what, values in reports.items() if what not in long}
    seen = (
        cohort.examples.double(),
        cohort.steps,
        *(torch.linalg.vector_norm(values, dim=1) for values in long.values()),
        *(~finite(values) for values in short.values()),
        torch.linalg.vector_norm(model).expand(len(cohort)),
    )
    # Stacked, so that the CPU waits for a GPU only once.
    claims, steps, *rows, own = torch.stack(seen).detach().cpu().numpy()
    norms = {what: _lengths(row, values) for row, (what, values) in zip(rows, long.items(), strict=False)}
    faulty = {what: ~np.isfinite(lengths) for what, lengths in norms.items()}
    faulty |= dict(zip(short, (row > 0 for row in rows[len(long) :]), strict=True))
    asked = local.asked(cohort.ids, torch.from_numpy(np.where(np.isfinite(claims), claims, 1.0))).numpy()
    ratio, lr = limits.norm_ratio, local.lr(round)
    moved = {what: _lengths_of_movers(cohort.ids, lengths) for what, lengths in norms.items()}
    bad = {
        BROKEN: faulty.pop(update),
        "the data count it claims is not a number": ~np.isfinite(claims),
        "it claims no data": claims <= 0,
        "the data count it claims is not whole": ~_whole(claims),
        "the number of steps it reports is not a positive whole number": ~_whole(steps) | (steps <= 0),
        f"it reports over {ratio:g} times as many steps as it was asked for": steps / ratio > asked,
        f"it claims more than the {limits.max_examples} samples allowed": claims
        > float(min(limits.max_examples, sys.float_info.max)),
        **{f"{what} is not finite": rows for what, rows in faulty.items()},
        **{
            f"{what} is over {ratio:g} {LONG}": lengths / ratio > _middle(moved[what])
            for what, lengths in norms.items()
        },
        **{
            f"{what} is over {ratio:g} {UNUSUAL}": lengths / ratio > past.usual(what, lr, moved[what])
            for what, lengths in norms.items()
        },
        **{
            f"{what} is over {ratio:g} {ENORMOUS}": lengths / ratio > _reach(own, model, 1.0 if what == update else lr)
            for what, lengths in norms.items()
            if past.count(what, moved[what]) < min(_ENOUGH, population)
        },
    }
    reasons: dict[int, str] = {}
    for reason, rows in bad.items():
        for place in rows.nonzero()[0]:
            reasons.setdefault(cohort.ids[place], reason)
    claimed = {c: int(n) if n.is_integer() else n for c, n in zip(cohort.ids, claims.tolist(), strict=True)}
    past = past.after(lr, moved)
    if not reasons:
        return Admitted(cohort, reasons, claimed, past)
    good = torch.tensor([client not in reasons for client in cohort.ids], device=cohort.updates.device)
    return Admitted(cohort.keep(good), reasons, claimed, past)


def _reach(own: npt.NDArray[np.float64], model: Tensor, lr: float) -> npt.NDArray[np.float64]:
    """``max(|w|, sqrt(D)) / min(lr, 1)``: a plausible length for a model of D weights, or for a sum of gradients.

    Hostile clients cannot move this bound, and in the first rounds there is little else to compare with.
    """
    length: npt.NDArray[np.float64] = np.maximum(own, len(model) ** 0.5) / min(lr, 1.0)
    return length


def _whole(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    whole: npt.NDArray[np.bool_] = np.isfinite(values) & (values == np.floor(values))
    return whole


def _lengths(norms: npt.NDArray[np.float64], values: Tensor) -> npt.NDArray[np.float64]:
    """The norms, also for rows whose squares overflow: there ``m |v / m|`` in float64, with m the largest ``|v_k|``.

    A norm that is still not finite belongs to a row with NaN or infinity.
    """
    for place in (~np.isfinite(norms)).nonzero()[0]:
        row = values[int(place)].detach().double()
        largest = row.abs().max()
        norms[place] = min(float(largest * torch.linalg.vector_norm(row / largest)), sys.float_info.max)
    return norms


def _lengths_of_movers(ids: Sequence[int], norms: npt.NDArray[np.float64]) -> dict[int, float]:
    """The lengths that are finite and not zero."""
    return {client: length for client, length in zip(ids, norms.tolist(), strict=True) if 0 < length < inf}


def _middle(moved: Mapping[int, float]) -> float:
    return median_high(moved.values()) if moved else 0.0
