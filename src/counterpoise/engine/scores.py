"""How well outputs fit their targets: one number per sample."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from torch import Tensor
from torch.nn import functional as F

__all__ = ["Loss", "Metric", "accuracy", "cross_entropy", "limits_of"]

Metric = Callable[[Tensor, Tensor], Tensor]
"""``(outputs, targets) -> one number per sample``, for a batch."""
Loss = Metric
"""A metric that can be differentiated with respect to the outputs."""


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 if the largest output is the target's, else 0."""
    return (outputs.argmax(1) == targets).to(outputs.dtype)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The usual loss of a classifier."""
    return F.cross_entropy(outputs, targets, reduction="none")


_LIMITS: dict[Metric, tuple[float, float]] = {accuracy: (0.0, 1.0), cross_entropy: (0.0, inf)}


def limits_of(metric: Metric) -> tuple[float, float]:
    """The smallest and the largest value that a metric can take; infinite for a metric that is not built in."""
    return _LIMITS.get(metric, (-inf, inf))
