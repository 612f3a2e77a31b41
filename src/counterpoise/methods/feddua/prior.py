"""What an honest client's factor is at a count: what the optimiser makes of it, and a small fit on top."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from counterpoise.flat import Layout
from counterpoise.local import Local
from counterpoise.parts.robust import line
from counterpoise.randomness import counter, normal, purpose

__all__ = ["NETWORK", "Line", "Network", "Prior", "expected", "fit_line", "fit_network", "linear", "solved", "steepest"]

_PARTS = 16
"""Parts of an interval that are looked at together: a bisection takes four times as many turns."""
_UNITS = 8
NETWORK = Layout(("range", "level", "outer", "inner", "bias"), ((2,), (1,), (_UNITS,), (_UNITS,), (_UNITS,)))
_DRAWN = purpose("feddua prior")
_TURNS = 300
_RATE = 0.05
_DECAY = 1e-3
"""Of the network's weights: eight points are few, and what they share is worth more than each one's chance."""


class Prior(Protocol):
    """How far honest clients' log alpha lies above `expected`."""

    def __call__(self, n: Tensor) -> Tensor:
        """At log counts of any shape."""


class Line(NamedTuple):
    """``a + b log n``."""

    a: Tensor
    b: Tensor

    def __call__(self, n: Tensor) -> Tensor:
        return self.a + self.b * n


class Network(NamedTuple):
    """``c + u . tanh(v t + w)`` with t from -1 to 1 over the ladder of sizes.

    Outside the ladder tanh saturates, so that the network goes on as a bounded curve that ends level.
    """

    weights: Tensor

    def __call__(self, n: Tensor) -> Tensor:
        (middle, half), level, outer, inner, bias = NETWORK.unflatten(self.weights)
        found: Tensor = level + torch.tanh(inner * ((n - middle) / half)[..., None] + bias) @ outer
        return found


def expected(n: Tensor, local: Local) -> Tensor:
    """log alpha at a count if all gradients were equal: ``|a|_1 / (E n)``, |a|_1 the reach of E ceil(n / B) steps.

    For plain SGD it is ``ceil(n / B) / n``; momentum makes the first steps shorter. What is left for the fit is small.
    """
    steps = local.passes * torch.ceil(n.exp() / local.batch - 1e-9)
    return (_reach(steps, local) / local.passes).log() - n


def fit_line(n: Tensor, alpha: Tensor, local: Local) -> Line:
    """``log alpha = expected + a + b log n`` of the majority; for SGD b within .3."""
    known = alpha.isfinite()
    most = steepest(local)
    return Line(*line(n[known], (alpha - expected(n, local))[known], -most, most))


def fit_network(n: Tensor, alpha: Tensor, local: Local, key: int) -> Network:
    """The same by a small network, as the paper suggests (section IV-B): least squares, by Adam from weights drawn with `key`.

    Its slope by log n is at most ``sum |u v|`` over half the ladder's width; after every step u is made so small that this is
    within .3. For points that are known to be honest: a liar among them would bend it.
    """
    known = alpha.isfinite()
    x, y = n[known], (alpha - expected(n, local))[known]
    if not len(x):
        return Network(n.new_zeros(NETWORK.size).index_fill(0, torch.tensor(1), 1))
    middle, half = (x.max() + x.min()) / 2, ((x.max() - x.min()) / 2).clamp(min=1e-3)
    t, most = ((x - middle) / half)[:, None], steepest(local) * half
    level, drawn = y.mean().view(1), normal(counter(key, _DRAWN, torch.arange(3 * _UNITS)), n.dtype)
    weights = torch.cat([level, drawn])
    first, second = torch.zeros_like(weights), torch.zeros_like(weights)
    for turn in range(1, _TURNS + 1):
        level, outer, inner, bias = weights[:1], *weights[1:].view(3, _UNITS)
        units = torch.tanh(inner * t + bias)
        off = (level + units @ outer - y)[:, None] / len(y)
        back = off * outer * (1 - units.square())
        slope = torch.cat([off.sum(0), (off * units).sum(0), (back * t).sum(0), back.sum(0)])
        slope[1:] += _DECAY * weights[1:]
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope.square()
        weights = weights - _RATE * first / (1 - 0.9**turn) / ((second / (1 - 0.999**turn)).sqrt() + 1e-8)
        steep = (weights[1 : 1 + _UNITS] * weights[1 + _UNITS : 1 + 2 * _UNITS]).abs().sum()
        weights[1 : 1 + _UNITS] *= most / steep.clamp(min=most)
    return Network(torch.cat([middle.view(1), half.view(1), weights]))


def solved(rho: Tensor, prior: Prior, local: Local) -> Tensor:
    """log n of which the prior expects this rho, by ever smaller intervals. A count takes ``n / B + 1/2`` steps on the average."""
    low, wide = torch.zeros_like(rho), 60.0
    grid = torch.linspace(0, 1, _PARTS + 1, dtype=rho.dtype)[1:]
    for _ in range(14):
        x = low[:, None] + wide * grid
        steps = local.passes * (x.exp() / local.batch + 0.5)
        # Below a batch the steps do not tell counts apart, and a falling line must not seem to.
        found = (_reach(steps, local) / local.passes).log() + prior(x.clamp(min=math.log(local.batch)))
        wide /= _PARTS
        low = low + wide * (found < rho[:, None]).sum(1).clamp(max=_PARTS - 1)
    return torch.where(rho.isfinite(), low + wide, torch.nan)


def linear(local: Local) -> bool:
    """Whether a step is linear in the gradients, so that the length of an update tells the number of steps."""
    return local.optimizer.reach is not None


def steepest(local: Local) -> float:
    """How far the fit may rise or fall with log n."""
    return 0.3 if linear(local) else 0.9


def _reach(steps: Tensor, local: Local) -> Tensor:
    return steps if local.optimizer.reach is None else local.optimizer.reach(steps)
