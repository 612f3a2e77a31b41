"""Models that take any sample as one flat vector."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Annotated

from torch import nn

from counterpoise.models.registry import MODELS, Layers, one_piece
from counterpoise.registry import Option

__all__ = ["linear", "mlp"]


@MODELS.register("mlp")
def mlp(
    shape: Sequence[int],
    classes: int,
    hidden: Annotated[int, Option("hidden units", low=1)] = 64,
) -> nn.Module:
    """One hidden layer of ReLU units.

    >>> sum(p.numel() for p in mlp((1, 8, 8), 10, hidden=32).parameters())
    2410
    """
    return Layers(nn.Flatten(), nn.Linear(prod(one_piece("mlp", shape)), hidden), nn.ReLU(), nn.Linear(hidden, classes))


@MODELS.register("linear")
def linear(shape: Sequence[int], classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return Layers(nn.Flatten(), nn.Linear(prod(one_piece("linear", shape)), classes))
