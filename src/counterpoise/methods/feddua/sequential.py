"""A client's evidence over its rounds: what one round shows, and what they show together.

A client's error is a constant of its own (its data differ from others') plus chance. Only chance averages out, so the
average over T rounds is held against ``sqrt(between^2 + within^2 g(T) / T)``. For a test that may look after every round
``g(T) = (1 + 1/T)(1 + log(1 + T) / threshold^2)``: Robbins' mixture bound (1970) for a sum of normal numbers.
One round alone is held against ``total``, at a limit that rises with the number of looks, so that all of them together
keep the error rate of the first: ``p / (T (T + 1))`` in round T sums to p.

Evidence is used once. A round that speaks for too large a claim by itself is answered in that round, by a correction and
a warning, and does not enter the average: an honest claim later is not judged by it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from counterpoise.parts.robust import spread

__all__ = ["HORIZON", "Weighed", "forgiven", "looks", "weigh_up"]

HORIZON = 10
"""Rounds of a client that its average goes back; older ones fade. Also the rounds in a row, each with a claim that fits its
evidence, that forgive one warning."""
_CLIPPED = 3.0
"""The largest error in log n that enters an average: one strange round must not weigh for ten."""


class Weighed(NamedTuple):
    """What the evidence comes to, ``[C, K]`` for K kinds of it."""

    z: Tensor
    """Standard deviations, scaled so that the threshold is the limit for all of them."""
    error: Tensor
    """log claimed - log estimated, by the evidence that decided: this round's, or the average."""
    scale: Tensor
    """The standard deviation it was held against: ``z = error / scale``."""
    by_memory: Tensor
    """Whether the average decided."""
    kept: Tensor
    """Whether this round enters the average."""
    sums: Tensor
    """To be kept of each client."""
    drift: Tensor
    """This round's error less the client's average before; NaN in its first round."""


def weigh_up(
    error: Tensor, total: Tensor, floor: Tensor, rounds: Tensor, sums: Tensor, drifts: Tensor, threshold: float
) -> Weighed:
    """Errors ``[C, K]`` (NaN where there is none), each the `rounds`-th ``[C, K]`` of its client and kind.

    `total` ``[K]`` is the spread of errors, `floor` ``[C, K]`` its least value, `drifts` ``[M, K]`` what earlier rounds
    drifted (NaN where nothing).
    """
    count, earlier = rounds.clamp(1, HORIZON), (rounds - 1).clamp(1, HORIZON)
    # An error less the mean of T others varies by 1 + 1/T times as much as an error.
    drift = torch.where(rounds > 1, (error - sums / earlier) * (earlier / (earlier + 1)).sqrt(), torch.nan)
    seen = torch.cat([drifts, drift])
    within = torch.stack([spread(column[column.isfinite()]) for column in seen.unbind(1)])
    within = torch.minimum(within, total)
    between = torch.maximum((total.square() - within.square()).sqrt(), floor)
    looked = (1 + 1 / count) * (1 + torch.log1p(count) / threshold**2)
    together = (between.square() + within.square() * looked / count).sqrt()

    once = torch.maximum(total, floor) * (looks(threshold, rounds) / threshold)
    once = torch.where(rounds > 1, once, torch.minimum(once, together))  # both tests look at the first round
    alone = error / once
    answered = (alone > threshold).any(1, keepdim=True)
    # Too small a claim gives no credit. It does not keep other kinds of evidence out of the average either, or a report
    # forged that way would.
    kept = ~answered & (alone >= -threshold)
    faded = 1 - (rounds > HORIZON).to(sums) / HORIZON
    sums = torch.where(kept, sums * faded + error.clamp(-_CLIPPED, _CLIPPED), sums)
    average = sums / count
    # What this round shows by itself decides before the average does.
    by_memory = kept & (rounds > 1) & ((average / together).abs() > alone.abs())
    decided, scale = torch.where(by_memory, average, error), torch.where(by_memory, together, once)
    return Weighed(torch.where(error.isfinite(), decided / scale, 0), decided, scale, by_memory, kept, sums, drift)


def looks(threshold: float, rounds: Tensor) -> Tensor:
    """The limit in a client's T-th round that spends ``p(threshold) / (T (T + 1))``, both sides together."""
    p = torch.special.erfc(torch.tensor(threshold, dtype=torch.float64) / 2**0.5)
    limit: Tensor = -torch.special.ndtri(p / (2 * rounds * (rounds + 1)))
    return limit


def forgiven(warnings: Tensor, over: Tensor, fits: Tensor, patience: int) -> Tensor:
    """Warnings ``[C]`` after a round; rounded up they are the number of warnings, and what is missing is the time served.

    A claim that is too large (`over`) adds one, at most to one more than `patience`, and whatever was served of the last
    one is lost. A claim that fits its evidence takes a tenth away: ten in a row forgive a warning.

    >>> warnings = torch.tensor([0, 1.4, 4, 4, 0], dtype=torch.float64)
    >>> forgiven(warnings, torch.arange(5) < 3, torch.arange(5) >= 3, patience=3).tolist()
    [1.0, 3.0, 4.0, 3.9, 0.0]
    """
    more = (warnings.ceil() + 1).clamp(max=patience + 1)
    less = ((warnings * HORIZON).round() - 1).clamp(min=0) / HORIZON
    return torch.where(over, more, torch.where(fits, less, warnings))
