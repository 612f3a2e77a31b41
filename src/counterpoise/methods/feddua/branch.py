"""FedDua's quantity-aware branch: a small network from a client's embedding to its adjustment factor.

``alpha = f(phi; embedding)`` (eq. 7), positive; trained by gradient descent on
``1/2 |rho / alpha - n|^2`` (eq. 8), with the derivative by alpha in closed form (eq. 9), the chain rule to phi
(eq. 10) and a rate of its own (eq. 11).
"""

from __future__ import annotations

import torch
from torch import Tensor

from counterpoise.flat import Layout
from counterpoise.randomness import counter, normal, purpose

__all__ = ["LAYOUT", "LONGEST", "SIZE", "embedding", "factor", "first_branch", "learn"]

SIZE = 16
"""Size of a client's embedding."""
_HIDDEN = 32
LAYOUT = Layout(
    ("inner.weight", "inner.bias", "outer.weight", "outer.bias"), ((_HIDDEN, SIZE), (_HIDDEN,), (_HIDDEN,), (1,))
)
_FIXED, _START = purpose("feddua embedding"), purpose("feddua branch")
LONGEST = 1.0
"""The longest step in phi before the rate: a factor far off makes eq. 9 enormous."""


def embedding(index: Tensor, dtype: torch.dtype) -> Tensor:
    """A client's fixed random embedding, by its number."""
    return normal(counter(_FIXED, index, torch.arange(SIZE, device=index.device)), dtype)


def first_branch(like: Tensor) -> Tensor:
    """The weights at the start: small, so that every client's factor begins near 1 / batch."""
    bits = counter(_START, torch.arange(LAYOUT.size, device=like.device))
    return 0.1 * normal(bits, like.dtype)


def factor(phi: Tensor, own: Tensor, batch: int) -> Tensor:
    """Eq. 7: ``alpha = exp(u . tanh(A e + a) + b) / batch``. For plain SGD alpha is 1 / batch, so it begins there."""
    inner, bias, outer, last = LAYOUT.unflatten(phi)
    return torch.exp(outer @ torch.tanh(inner @ own + bias) + last[0]) / batch


def learn(phi: Tensor, own: Tensor, rho: Tensor, n: Tensor, batch: int, rate: float) -> tuple[Tensor, Tensor]:
    """One step of eq. 9-11 on the branch and on the embedding; returns both.

    Eq. 8 is taken relative to n, ``1/2 (rho / (alpha n) - 1)^2``: the printed one times 1 / n^2, a rate for each client
    without which no rate fits counts of 10 and of 10,000. Steps are at most 1 long before the rate.
    """
    inner, bias, outer, _ = LAYOUT.unflatten(phi)
    hidden = torch.tanh(inner @ own + bias)
    alpha = factor(phi, own, batch)
    by_alpha = (rho / alpha / n - 1) * (-rho / alpha.square() / n)  # eq. 9, over n^2
    by_output = by_alpha * alpha  # alpha is an exponential
    back = by_output * outer * (1 - hidden.square())
    slope = LAYOUT.flatten([back[:, None] * own, back, by_output * hidden, by_output[None]])
    by_own = back @ inner
    length = torch.sqrt(slope.square().sum() + by_own.square().sum())
    step = rate * (LONGEST / length.clamp(min=LONGEST))
    return phi - step * slope, own - step * by_own
