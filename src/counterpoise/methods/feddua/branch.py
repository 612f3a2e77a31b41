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
_FURTHEST = 1e6
"""How far off a factor is taken to be. The step is cut to the same length anyway, and the squares stay finite."""


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
    """Steps of eq. 9-11 on the branch, and on the embedding if it is `learnable`; returns both.

    Unless eq. 8 is to be as `printed`, it is taken relative to n: ``1/2 (rho / (alpha n) - 1)^2``, the printed one over n^2.
    Its slope does not grow with the count, so that one rate fits counts of 10 and of 10,000. A step is at most 1 long
    before the rate either way: the printed slope is so steep that all its steps are, until a factor fits.
    """
    inner, bias, outer, last = LAYOUT.unflatten(phi)
    goal, size = rho * batch / n, n.square() if printed else torch.ones_like(n)
    for _ in range(steps):
        hidden = torch.tanh(inner @ own + bias)
        ratio = goal * torch.exp(-(outer @ hidden + last))  # rho / (alpha n)
        ratio = ratio.clamp(max=_FURTHEST)
        by_output = size * (ratio - 1) * -ratio  # eq. 9 by log alpha, as alpha is an exponential; or that over n^2
        back = by_output * outer * (1 - hidden.square())
        by_own = back @ inner if learnable else own.new_zeros(1)
        # The slope's squared length, by its products: cheaper than to lay it out.
        square = (back @ back) * (1 + own @ own) + by_output.square() * (1 + hidden @ hidden) + by_own @ by_own
        step = rate * LONGEST / square.sqrt().clamp(min=LONGEST)
        inner, bias = inner - torch.outer(step * back, own), bias - step * back
        outer, last = outer - step * by_output * hidden, last - step * by_output
        own = own - step * by_own if learnable else own
    return LAYOUT.flatten([inner, bias, outer, last]), own
