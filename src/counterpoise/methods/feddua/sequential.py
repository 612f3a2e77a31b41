"""A client's evidence over its rounds: what one round shows, and what they show together.

A client's error is a constant of its own (its data differ from others') plus chance. Only chance averages out, so the
average over T rounds is held against ``sqrt(between^2 + within^2 g(T) / T)``. For a test that may look after every round
``g(T) = (1 + 1/T)(1 + log(1 + T) / threshold^2)``: Robbins' mixture bound (1970) for a sum of normal numbers.
One round alone is held against ``total``, at a limit that rises with the number of looks, so that all of them together
keep the error rate of the first: ``p / (T (T + 1))`` in round T sums to p.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from counterpoise.parts.robust import spread

__all__ = ["HORIZON", "Weighed", "looks", "weigh_up"]

HORIZON = 10
"""Rounds of a client that its average goes back; older ones fade, so that one who has mended its ways is heard again."""
_CLIPPED = 10.0
"""The largest error, in spreads, that enters an average: one strange round must not stay for ten."""


class Weighed(NamedTuple):
    """What the evidence comes to, ``[C, K]`` for K kinds of it."""

    z: Tensor
    """Standard deviations, scaled so that the threshold is the limit for all of them."""
    average: Tensor
    """log claimed - log estimated, over the client's rounds."""
    sums: Tensor
    """To be kept of each client."""
    drift: Tensor
    """This round's error less the client's average before; NaN in its first round."""


def weigh_up(
    error: Tensor, total: Tensor, floor: Tensor, rounds: Tensor, sums: Tensor, drifts: Tensor, threshold: float
) -> Weighed:
    """Errors ``[C, K]`` (NaN where there is none) in each client's `rounds`-th round, counted from 1.

    `total` ``[K]`` is the spread of errors, `floor` ``[C, K]`` its least value, `drifts` ``[M, K]`` what earlier rounds
    drifted (NaN where nothing).
    """
    there = error.isfinite()
    count = rounds[:, None].clamp(max=HORIZON)
    yardstick = torch.maximum(total, floor)
    before = sums / (count - 1).clamp(min=1)
    # An error less the mean of T - 1 others varies by 1 + 1/(T - 1) times as much as an error.
    drift = torch.where(count > 1, (error - before) * ((count - 1) / count).sqrt(), torch.nan)
    seen = torch.cat([drifts, drift])
    within = torch.stack([spread(column[column.isfinite()]) for column in seen.unbind(1)])
    within = torch.minimum(within, total)
    between = torch.maximum((total.square() - within.square()).sqrt(), floor)

    clipped = torch.where(there, error, 0).clamp(-_CLIPPED * yardstick, _CLIPPED * yardstick)
    faded = 1 - (rounds[:, None] > HORIZON).to(sums) / HORIZON
    sums = sums * faded + clipped
    average = torch.where(rounds[:, None] > 1, sums / count, error)
    looked = (1 + 1 / count) * (1 + torch.log1p(count) / threshold**2)
    together = average / (between.square() + within.square() * looked / count).sqrt()
    alone = error / yardstick * (threshold / looks(threshold, rounds))[:, None]
    z = torch.where(together.abs() > alone.abs(), together, alone)
    return Weighed(torch.where(there, z, 0), average, sums, drift)


def looks(threshold: float, rounds: Tensor) -> Tensor:
    """The limit in a client's T-th round that spends ``p(threshold) / (T (T + 1))``, both sides together."""
    p = torch.special.erfc(torch.tensor(threshold, dtype=torch.float64) / 2**0.5)
    limit: Tensor = -torch.special.ndtri(p / (2 * rounds * (rounds + 1)))
    return limit
