"""FedDua's quantity-aware branch: a small network from a client's embedding to its adjustment factor.

``alpha = f(phi; embedding)`` (eq. 7) is positive. Gradient descent on ``1/2 |rho / alpha - n|^2`` (eq. 8) trains phi,
with the derivative by alpha in closed form (eq. 9), the chain rule to phi (eq. 10) and a rate of its own (eq. 11).
"""

from __future__ import annotations

import torch
from torch import Tensor

from counterpoise.flat import Layout
from counterpoise.methods.feddua.constants import (
    EMBEDDING_SIZE,
    HIDDEN_UNITS,
    LARGEST_RATIO,
    LONGEST_STEP,
    START_SCALE,
)
from counterpoise.randomness import counter, normal, purpose

__all__ = ["LAYOUT", "embed", "learn", "predict_factor", "start_branch"]

LAYOUT = Layout(
    ("inner.weight", "inner.bias", "outer.weight", "outer.bias"),
    ((HIDDEN_UNITS, EMBEDDING_SIZE), (HIDDEN_UNITS,), (HIDDEN_UNITS,), (1,)),
)
_EMBEDDING, _START = purpose("feddua embedding"), purpose("feddua branch")


def embed(index: Tensor, dtype: torch.dtype) -> Tensor:
    """Draw a client's fixed random embedding from its number."""
    return normal(counter(_EMBEDDING, index, torch.arange(EMBEDDING_SIZE, device=index.device)), dtype)


def start_branch(like: Tensor) -> Tensor:
    """Draw the first weights. They are small, so that every client's factor begins near 1 / batch."""
    bits = counter(_START, torch.arange(LAYOUT.size, device=like.device))
    return START_SCALE * normal(bits, like.dtype)


def predict_factor(phi: Tensor, own: Tensor, batch: int) -> Tensor:
    """Eq. 7: ``alpha = exp(u . tanh(A e + a) + b) / batch``. It begins at 1 / batch, which is exact for plain SGD."""
    inner, bias, outer, last = LAYOUT.unflatten(phi)
    return torch.exp(outer @ torch.tanh(inner @ own + bias) + last[0]) / batch


def learn(
    phi: Tensor,
    own: Tensor,
    rho: Tensor,
    n: Tensor,
    batch: int,
    rate: float,
    steps: int,
    learnable: bool,
    printed: bool = False,
) -> tuple[Tensor, Tensor]:
    """Take steps of eq. 9-11 on the branch, and on the embedding if it is `learnable`; return both.

    By default eq. 8 is relative to n: ``1/2 (rho / (alpha n) - 1)^2``, which is the printed loss over n^2. Its slope
    does not grow with the count, so that one rate fits counts of 10 and of 10,000. Either way a step is at most 1 long
    before the rate. The slope of the `printed` loss is so steep that all its steps are that long until a factor fits.
    """
    inner, bias, outer, last = LAYOUT.unflatten(phi)
    goal, size = rho * batch / n, n.square() if printed else torch.ones_like(n)
    for _ in range(steps):
        hidden = torch.tanh(inner @ own + bias)
        ratio = goal * torch.exp(-(outer @ hidden + last))  # rho / (alpha n)
        ratio = ratio.clamp(max=LARGEST_RATIO)
        # Eq. 9 by log alpha, because alpha is an exponential; if relative, over n^2.
        by_output = size * (ratio - 1) * -ratio
        back = by_output * outer * (1 - hidden.square())
        by_own = back @ inner if learnable else own.new_zeros(1)
        # The squared length of the slope, from its factors: cheaper than building the slope.
        square = (back @ back) * (1 + own @ own) + by_output.square() * (1 + hidden @ hidden) + by_own @ by_own
        step = rate * LONGEST_STEP / square.sqrt().clamp(min=LONGEST_STEP)
        inner, bias = inner - torch.outer(step * back, own), bias - step * back
        outer, last = outer - step * by_output * hidden, last - step * by_output
        own = own - step * by_own if learnable else own
    return LAYOUT.flatten([inner, bias, outer, last]), own
