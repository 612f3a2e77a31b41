"""Fits and spreads that a minority of liars cannot move far. All in float64 on vectors of points on the CPU.

They run in NumPy, which takes a fraction of torch's time on so few numbers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["line", "median", "middle", "regression", "spread"]

_NEAR = 0.05
"""Two points closer than this say nothing about a slope."""

Array = npt.NDArray[np.float64]


def spread(errors: Tensor) -> Tensor:
    """The standard deviation about 0 of normal errors with the same median size, or the same 80th percentile.

    The larger of the two is taken, as clients have long tails. Fewer than a fifth of the errors cannot move it far.

    >>> [round(float(spread(torch.tensor(e))), 3) for e in ([-1.0, 1.0, 1.0, -1.0, 1.0], [0.1, 0.1, 0.1, 0.1, 0.9, 0.9])]
    [1.483, 0.702]
    """
    return errors.new_tensor(_spread(errors.numpy()))


def _spread(errors: Array) -> float:
    if not len(errors):
        return 0.0
    ordered = np.sort(np.abs(errors))
    return max(1.4826 * _quantile(ordered, 0.5), 0.7803 * _quantile(ordered, 0.8))


def _quantile(ordered: Array, share: float) -> float:
    """The value at a share of the way through a sorted vector, between two of them by linear interpolation."""
    place = share * (len(ordered) - 1)
    below = int(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    return float(low + (place - below) * (high - low))


def median(values: Tensor) -> Tensor:
    """The middle of a vector, or the mean of the two middle values.

    >>> float(median(torch.tensor([5.0, 1.0, 2.0]))), float(median(torch.tensor([5.0, 1.0, 2.0, 4.0])))
    (2.0, 3.0)
    """
    return values.new_tensor(middle(values.numpy()))


def middle(values: Array) -> float:
    """The same of an array; 0 if it is empty."""
    if not len(values):
        return 0.0
    places = (len(values) - 1) // 2, len(values) // 2
    low, high = np.partition(values, places)[[*places]]
    return float(low / 2 + high / 2)


def line(x: Tensor, y: Tensor, low: float, high: float, most: int = 512) -> tuple[Tensor, Tensor]:
    """Intercept and slope of y on x by medians (Theil-Sen). The slope is clamped to its bounds and shrunk towards 0.

    It holds while less than 29 % of the points are outliers. If the x are nearly equal, the slope is 0.

    >>> a, b = line(torch.arange(7.0), torch.tensor([1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 9.0]), -0.3, 0.3)
    >>> round(float(a), 2), round(float(b), 2)
    (1.0, 0.2)
    """
    if not len(x):
        return x.new_zeros(()), x.new_zeros(())
    if len(x) > most:  # the number of pairs grows quadratically
        some = torch.linspace(0, len(x) - 1, most).long()
        x, y = x[some], y[some]
    at, value = x.numpy(), y.numpy()
    run, rise = at[:, None] - at, value[:, None] - value
    apart = run > _NEAR  # each pair once, the larger x first
    slope = 0.0
    if apart.any():
        share = apart.sum() / (len(at) * (len(at) - 1) / 2)
        # With most x equal, the few that differ must not tilt the line.
        slope = min(max(middle(rise[apart] / run[apart]), low), high) * min(share / 0.5, 1.0)
    return x.new_tensor(middle(value - slope * at)), x.new_tensor(slope)


def regression(x: Tensor, y: Tensor, prior: Tensor, strength: float = 1.0, turns: int = 10) -> Tensor:
    """Coefficients of y on the columns of x ``[M, K]``, pulled towards a prior, by iterated Huber weights.

    ``min_c sum_m h(y_m - x_m c) + strength |c - prior|^2``
    """
    columns, values, usual = x.numpy(), y.numpy(), prior.numpy()
    weights, pull = np.ones_like(values), strength * np.eye(columns.shape[1])
    c = usual
    for _ in range(turns):
        weighted = columns.T * weights
        c = np.linalg.solve(weighted @ columns + pull, weighted @ values + strength * usual)
        errors = values - columns @ c
        weights = np.minimum(1.5 * max(_spread(errors), _NEAR) / np.maximum(np.abs(errors), 1e-12), 1.0)
    return torch.from_numpy(c).to(prior)
