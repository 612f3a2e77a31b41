"""A client's evidence over its rounds: what one round shows, and what several show together.

A client's error is a constant of its own (its data differ from others') plus chance. Only chance averages out, so the
average over T rounds is compared with ``sqrt(between^2 + within^2 g(T) / T)``. Because the test looks after every
round, ``g(T) = (1 + 1/T)(1 + log(1 + T) / threshold^2)``: Robbins' mixture bound (1970) for a sum of normal numbers.
One round alone is compared with ``total``. Its limit rises with the number of looks, so that all looks together keep
the error rate of the first: ``p / (T (T + 1))`` in round T sums to p.

Evidence is used once. A round that by itself shows too large a claim is answered in that round, by a correction and a
warning. It does not enter the average, so that a later honest claim is not judged by it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from counterpoise.methods.feddua.constants import HORIZON, LARGEST_ERROR
from counterpoise.parts.robust import spread

__all__ = ["Weighed", "raise_limit", "update_warnings", "weigh_up"]


class Weighed(NamedTuple):
    """The evidence of all kinds after weighing, ``[C, K]`` for K kinds."""

    z: Tensor
    """Standard deviations, scaled so that the threshold is the limit for all of them."""
    error: Tensor
    """log claimed - log estimated, by the evidence that decided: this round's, or the average."""
    scale: Tensor
    """The standard deviation that the error was compared with: ``z = error / scale``."""
    by_memory: Tensor
    """Whether the average decided."""
    kept: Tensor
    """Whether this round enters the average."""
    sums: Tensor
    """The sums to keep for each client."""
    drift: Tensor
    """This round's error less the client's earlier average; NaN in its first round."""


def weigh_up(
    error: Tensor, total: Tensor, floor: Tensor, rounds: Tensor, sums: Tensor, drifts: Tensor, threshold: float
) -> Weighed:
    """Weigh errors ``[C, K]`` (NaN if there is none), each the `rounds`-th ``[C, K]`` of its client and kind.

    `total` ``[K]`` is the spread of errors, `floor` ``[C, K]`` its least value, and `drifts` ``[M, K]`` the drift of
    earlier rounds (NaN if there is none).
    """
    count, earlier = rounds.clamp(1, HORIZON), (rounds - 1).clamp(1, HORIZON)
    # The variance of an error less the mean of T others is 1 + 1/T times that of an error.
    drift = torch.where(rounds > 1, (error - sums / earlier) * (earlier / (earlier + 1)).sqrt(), torch.nan)
    seen = torch.cat([drifts, drift])
    within = torch.stack([spread(column[column.isfinite()]) for column in seen.unbind(1)])
    within = torch.minimum(within, total)
    between = torch.maximum((total.square() - within.square()).sqrt(), floor)
    looked = (1 + 1 / count) * (1 + torch.log1p(count) / threshold**2)
    together = (between.square() + within.square() * looked / count).sqrt()

    once = torch.maximum(total, floor) * (raise_limit(threshold, rounds) / threshold)
    once = torch.where(rounds > 1, once, torch.minimum(once, together))  # both tests look at the first round
    alone = error / once
    answered = (alone > threshold).any(1, keepdim=True)
    # Too small a claim earns no credit. Nor does it keep other kinds of evidence out of the average: otherwise a report
    # forged that way would hide them.
    kept = ~answered & (alone >= -threshold)
    faded = 1 - (rounds > HORIZON).to(sums) / HORIZON
    sums = torch.where(kept, sums * faded + error.clamp(-LARGEST_ERROR, LARGEST_ERROR), sums)
    average = sums / count
    # What this round shows by itself takes precedence over the average.
    by_memory = kept & (rounds > 1) & ((average / together).abs() > alone.abs())
    decided, scale = torch.where(by_memory, average, error), torch.where(by_memory, together, once)
    return Weighed(torch.where(error.isfinite(), decided / scale, 0), decided, scale, by_memory, kept, sums, drift)


def raise_limit(threshold: float, rounds: Tensor) -> Tensor:
    """Raise the limit of a client's T-th round so that both sides together spend ``p(threshold) / (T (T + 1))``."""
    p = torch.special.erfc(torch.tensor(threshold, dtype=torch.float64) / 2**0.5)
    limit: Tensor = -torch.special.ndtri(p / (2 * rounds * (rounds + 1)))
    return limit


def update_warnings(warnings: Tensor, over: Tensor, fits: Tensor, patience: int) -> Tensor:
    """Update warnings ``[C]`` after a round. Rounded up they are the number of warnings; the rest is time served.

    A claim that is too large (`over`) adds one, up to one more than `patience`, and cancels the time served. A claim
    that fits its evidence takes a tenth away, so that ten in a row forgive a warning.

    >>> warnings = torch.tensor([0, 1.4, 4, 4, 0], dtype=torch.float64)
    >>> update_warnings(warnings, torch.arange(5) < 3, torch.arange(5) >= 3, patience=3).tolist()
    [1.0, 3.0, 4.0, 3.9, 0.0]
    """
    more = (warnings.ceil() + 1).clamp(max=patience + 1)
    less = ((warnings * HORIZON).round() - 1).clamp(min=0) / HORIZON
    return torch.where(over, more, torch.where(fits, less, warnings))
