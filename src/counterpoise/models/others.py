"""Convolutional networks with which other projects publish tables (studies/external)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from torch import nn

from counterpoise.errors import CounterpoiseError, brief
from counterpoise.models.registry import MODELS, Channel, Layers, image
from counterpoise.registry import Option

__all__ = ["conv2", "moderate_cnn", "vgg11"]

_WIDTHS = [64, 64, 384, 192]
_WIDEST = 2**16


@MODELS.register("conv2")
def conv2(
    shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    widths: Annotated[list, Option("channels of both convolutions, then units of the dense layers")] = _WIDTHS,  # type: ignore[type-arg]
) -> nn.Module:
    """Two 5 x 5 convolutions without padding, each with 2 x 2 max-pooling, then dense layers.

    The default widths are those of FedDyn's authors; McMahan et al. 2017 and PFLlib have 32, 64, 512.

    >>> sum(p.numel() for p in conv2().parameters())
    797962
    """
    channels, height, width = image("conv2", shape, 16)
    if len(widths) < 2 or any(type(w) is not int or not 1 <= w <= _WIDEST for w in widths):
        raise CounterpoiseError(
            f"model conv2: widths must be two or more whole numbers from 1 to {_WIDEST}, not {brief(widths)}."
        )
    first, second, *dense = widths
    sides = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
    units = [second * math.prod(sides), *dense]
    hidden = [[nn.Linear(a, b), nn.ReLU()] for a, b in pairwise(units)]
    return Layers(
        Channel(),
        *(nn.Conv2d(channels, first, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(layer for pair in hidden for layer in pair),
        nn.Linear(units[-1], classes),
    )


def _pairs(*widths: int) -> list[nn.Module]:
    """3 x 3 convolutions from each width to the next, with ReLU."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
    return layers


@MODELS.register("moderate-cnn")
def moderate_cnn(shape: Sequence[int] = (3, 32, 32), classes: int = 10) -> nn.Module:
    """Six 3 x 3 convolutions and three dense layers with some dropout (FedMA, NVFlare).

    >>> sum(p.numel() for p in moderate_cnn().parameters())
    3491530
    """
    channels, height, width = image("moderate-cnn", shape, 8)
    return Layers(
        Channel(),
        *(*_pairs(channels, 32, 64), nn.MaxPool2d(2)),
        *(*_pairs(64, 128, 128), nn.MaxPool2d(2), nn.Dropout2d(0.05)),
        *(*_pairs(128, 256, 256), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(nn.Dropout(0.1), nn.Linear(256 * (height // 8) * (width // 8), 512), nn.ReLU()),
        *(nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.1)),
        nn.Linear(512, classes),
    )


@MODELS.register("vgg11")
def vgg11(shape: Sequence[int] = (3, 32, 32), classes: int = 10) -> nn.Module:
    """VGG-11 without normalisation, for small images (Flower's baseline of FedNova).

    Dense layers of 512 with dropout 0.5. A convolution starts with normal weights of variance 2 over its outputs times
    its area, and without a shift.

    >>> sum(p.numel() for p in vgg11().parameters())
    9750922
    """
    channels, height, width = image("vgg11", shape, 32)
    model = Layers(
        Channel(),
        *(*_pairs(channels, 64), nn.MaxPool2d(2)),
        *(*_pairs(64, 128), nn.MaxPool2d(2)),
        *(*_pairs(128, 256, 256), nn.MaxPool2d(2)),
        *(*_pairs(256, 512, 512), nn.MaxPool2d(2)),
        *(*_pairs(512, 512, 512), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(nn.Dropout(0.5), nn.Linear(512 * (height // 32) * (width // 32), 512), nn.ReLU()),
        *(nn.Dropout(0.5), nn.Linear(512, 512), nn.ReLU()),
        nn.Linear(512, classes),
    )
    for layer in model:
        if isinstance(layer, nn.Conv2d):
            nn.init.normal_(layer.weight, 0.0, math.sqrt(2 / (9 * layer.out_channels)))
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return model
