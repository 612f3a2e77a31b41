"""What an honest client's factor is at a given count: what follows from the optimizer, plus a small fit."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from counterpoise.flat import Layout
from counterpoise.local import Local
from counterpoise.methods.feddua.constants import (
    ADAM_EPSILON,
    ADAM_FIRST,
    ADAM_SECOND,
    NARROWEST_LADDER,
    NETWORK_DECAY,
    NETWORK_RATE,
    NETWORK_TURNS,
    NETWORK_UNITS,
    ROUNDING,
    SEARCH_PARTS,
    SEARCH_TURNS,
    SEARCH_WIDTH,
    SLOPE,
    SLOPE_UNKNOWN_OPTIMIZER,
)
from counterpoise.parts.robust import line
from counterpoise.randomness import counter, normal, purpose

__all__ = [
    "NETWORK",
    "Line",
    "Network",
    "Prior",
    "bound_slope",
    "count_steps",
    "expect",
    "fit_line",
    "fit_network",
    "is_linear",
    "solve",
]

NETWORK = Layout(
    ("range", "level", "outer", "inner", "bias"), ((2,), (1,), (NETWORK_UNITS,), (NETWORK_UNITS,), (NETWORK_UNITS,))
)
_DRAWN = purpose("feddua prior")


class Prior(Protocol):
    """How far honest clients' log alpha lies above what `expect` gives."""

    def __call__(self, n: Tensor) -> Tensor:
        """At log counts of any shape."""


class Line(NamedTuple):
    """``a + b log n``."""

    a: Tensor
    b: Tensor

    def __call__(self, n: Tensor) -> Tensor:
        return self.a + self.b * n


class Network(NamedTuple):
    """``c + u . tanh(v t + w)``, where t runs from -1 to 1 over the ladder of sizes.

    Outside the ladder tanh saturates, so that the curve stays bounded and flattens out.
    """

    weights: Tensor

    def __call__(self, n: Tensor) -> Tensor:
        (middle, half), level, outer, inner, bias = NETWORK.unflatten(self.weights)
        found: Tensor = level + torch.tanh(inner * ((n - middle) / half)[..., None] + bias) @ outer
        return found


def expect(n: Tensor, local: Local) -> Tensor:
    """Log alpha at a count if all gradients were equal: ``|a|_1 / (E n)``, |a|_1 the reach of E ceil(n / B) steps.

    For plain SGD this is ``ceil(n / B) / n``. Momentum makes the first steps shorter. Little is left for the fit.
    """
    steps = local.passes * count_steps(n, local)
    return (_compute_reach(steps, local) / local.passes).log() - n


def count_steps(n: Tensor, local: Local) -> Tensor:
    """Steps of one epoch over a log count: ``ceil(n / B)``."""
    return torch.ceil(n.exp() / local.batch - ROUNDING)


def fit_line(n: Tensor, alpha: Tensor, local: Local) -> Line:
    """Fit ``log alpha = expect + a + b log n`` to the majority; for SGD, b lies within .3."""
    known = alpha.isfinite()
    most = bound_slope(local)
    return Line(*line(n[known], (alpha - expect(n, local))[known], -most, most))


def fit_network(n: Tensor, alpha: Tensor, local: Local, key: int) -> Network:
    """Fit a small network instead, as the paper suggests (section IV-B): least squares by Adam, drawn with `key`.

    Its slope by log n is at most ``sum |u v|`` over half the ladder's width. After every step u is scaled down until
    this is within .3. Use it only for points that are known to be honest, because a liar among them would bend it.
    """
    known = alpha.isfinite()
    x, y = n[known], (alpha - expect(n, local))[known]
    if not len(x):
        return Network(n.new_zeros(NETWORK.size).index_fill(0, torch.tensor(1), 1))
    middle, half = (x.max() + x.min()) / 2, ((x.max() - x.min()) / 2).clamp(min=NARROWEST_LADDER)
    t, most = ((x - middle) / half)[:, None], bound_slope(local) * half
    level, drawn = y.mean().view(1), normal(counter(key, _DRAWN, torch.arange(3 * NETWORK_UNITS)), n.dtype)
    weights = torch.cat([level, drawn])
    first, second = torch.zeros_like(weights), torch.zeros_like(weights)
    for turn in range(1, NETWORK_TURNS + 1):
        slope = _differentiate(weights, t, y)
        first = ADAM_FIRST[0] * first + ADAM_FIRST[1] * slope
        second = ADAM_SECOND[0] * second + ADAM_SECOND[1] * slope.square()
        scale = (second / (1 - ADAM_SECOND[0] ** turn)).sqrt() + ADAM_EPSILON
        weights = weights - NETWORK_RATE * first / (1 - ADAM_FIRST[0] ** turn) / scale
        _, outer, inner, _ = _split(weights)
        steep = (outer * inner).abs().sum()
        outer *= most / steep.clamp(min=most)  # a view: this scales the weights
    return Network(torch.cat([middle.view(1), half.view(1), weights]))


def _split(weights: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    outer, inner, bias = weights[1:].view(3, NETWORK_UNITS)
    return weights[:1], outer, inner, bias


def _differentiate(weights: Tensor, t: Tensor, y: Tensor) -> Tensor:
    """Differentiate half the mean squared error of the network at t, plus weight decay, by the weights."""
    level, outer, inner, bias = _split(weights)
    units = torch.tanh(inner * t + bias)
    off = (level + units @ outer - y)[:, None] / len(y)
    back = off * outer * (1 - units.square())
    slope = torch.cat([off.sum(0), (off * units).sum(0), (back * t).sum(0), back.sum(0)])
    slope[1:] += NETWORK_DECAY * weights[1:]
    return slope


def solve(rho: Tensor, prior: Prior, local: Local) -> Tensor:
    """Find the log n at which the prior gives this rho, in ever smaller intervals.

    On average a count takes ``n / B + 1/2`` steps.
    """
    low, wide = torch.zeros_like(rho), SEARCH_WIDTH
    grid = torch.linspace(0, 1, SEARCH_PARTS + 1, dtype=rho.dtype)[1:]
    for _ in range(SEARCH_TURNS):
        x = low[:, None] + wide * grid
        steps = local.passes * (x.exp() / local.batch + 0.5)
        # Below a batch, steps do not tell counts apart; a falling line must not pretend to.
        found = (_compute_reach(steps, local) / local.passes).log() + prior(x.clamp(min=math.log(local.batch)))
        wide /= SEARCH_PARTS
        low = low + wide * (found < rho[:, None]).sum(1).clamp(max=SEARCH_PARTS - 1)
    return torch.where(rho.isfinite(), low + wide, torch.nan)


def is_linear(local: Local) -> bool:
    """Whether a step is linear in the gradients, so that the length of an update shows the number of steps."""
    return local.optimizer.reach is not None


def bound_slope(local: Local) -> float:
    """How steeply the fit may rise or fall with log n."""
    return SLOPE if is_linear(local) else SLOPE_UNKNOWN_OPTIMIZER


def _compute_reach(steps: Tensor, local: Local) -> Tensor:
    return steps if local.optimizer.reach is None else local.optimizer.reach(steps)
