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
_CLIPPED = 3.0
"""The largest error in log n that enters an average: one strange round must not weigh for ten."""


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
    """Errors ``[C, K]`` (NaN where there is none), each the `rounds`-th ``[C, K]`` of its client and kind.

    `total` ``[K]`` is the spread of errors, `floor` ``[C, K]`` its least value, `drifts` ``[M, K]`` what earlier rounds
    drifted (NaN where nothing).
    """
    there = error.isfinite()
    count, earlier = rounds.clamp(1, HORIZON), (rounds - 1).clamp(1, HORIZON)
    yardstick = torch.maximum(total, floor)
    # An error less the mean of T others varies by 1 + 1/T times as much as an error.
    drift = torch.where(rounds > 1, (error - sums / earlier) * (earlier / (earlier + 1)).sqrt(), torch.nan)
    seen = torch.cat([drifts, drift])
    within = torch.stack([spread(column[column.isfinite()]) for column in seen.unbind(1)])
    within = torch.minimum(within, total)
    between = torch.maximum((total.square() - within.square()).sqrt(), floor)

    faded = 1 - (rounds > HORIZON).to(sums) / HORIZON
    sums = torch.where(there, sums * faded + error.clamp(-_CLIPPED, _CLIPPED), sums)
    average = torch.where(rounds > 1, sums / count, error)
    looked = (1 + 1 / count) * (1 + torch.log1p(count) / threshold**2)
    together = average / (between.square() + within.square() * looked / count).sqrt()
    alone = error / yardstick * (threshold / looks(threshold, rounds.clamp(min=1)))
    # A claim too high now is one, whatever the rounds before may have said.
    high, low = torch.maximum(together, alone), torch.minimum(together, alone)
    z = torch.where((high > threshold) | (high > -low), high, low)
    return Weighed(torch.where(there, z, 0), average, sums, drift)


def looks(threshold: float, rounds: Tensor) -> Tensor:
    """The limit in a client's T-th round that spends ``p(threshold) / (T (T + 1))``, both sides together."""
    p = torch.special.erfc(torch.tensor(threshold, dtype=torch.float64) / 2**0.5)
    limit: Tensor = -torch.special.ndtri(p / (2 * rounds * (rounds + 1)))
    return limit
