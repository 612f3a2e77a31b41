"""The papers' convolutional networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from torch import nn

from counterpoise.models.registry import MODELS, Channel, Layers, image
from counterpoise.registry import Option

__all__ = ["cnn3", "cnn6", "lenet5", "light_cnn"]


def _conv(inputs: int, outputs: int, kernel: int = 3, padding: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, padding=padding), nn.ReLU()]


@MODELS.register("lenet5")
def lenet5(
    shape: Sequence[int] = (1, 28, 28),
    classes: int = 10,
    padding: Annotated[
        int, Option("pixels around the image: 2 for 28 x 28, 0 as NIID-Bench has it", low=0, high=2)
    ] = 2,
) -> nn.Module:
    """LeNet-5 with ReLU and max-pooling: 61,706 parameters on 28 x 28 grey images (FedOAED).

    >>> sum(p.numel() for p in lenet5().parameters())
    61706
    """
    channels, height, width = image("lenet5", shape, 16 - 2 * padding)
    flat = 16 * math.prod(((side + 2 * padding - 4) // 2 - 4) // 2 for side in (height, width))
    return Layers(
        Channel(),
        *_conv(channels, 6, 5, padding),
        nn.MaxPool2d(2),
        *_conv(6, 16, 5, padding=0),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(flat, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


@MODELS.register("light-cnn")
def light_cnn(
    shape: Sequence[int] = (1, 28, 28),
    classes: int = 10,
    dropout: Annotated[
        float, Option("dropout rate after the second convolution and the first dense layer", low=0, below=1)
    ] = 0.0,
) -> nn.Module:
    """Two convolutions and two dense layers: 21,840 parameters on 28 x 28 grey images (FedBaC).

    The paper gives the layers but not their widths; these widths are from the code it builds on.

    >>> sum(p.numel() for p in light_cnn().parameters())
    21840
    """
    channels, height, width = image("light-cnn", shape, 16)
    flat = 20 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    return Layers(
        Channel(),
        nn.Conv2d(channels, 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        *([nn.Dropout2d(dropout)] if dropout else []),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(flat, 50),
        nn.ReLU(),
        *([nn.Dropout(dropout)] if dropout else []),
        nn.Linear(50, classes),
    )


@MODELS.register("cnn3")
def cnn3(shape: Sequence[int] = (3, 32, 32), classes: int = 10) -> nn.Module:
    """Two convolutions and one dense layer (FedA4, figure 5).

    The paper says 'shallow three-layer CNN' but gives no widths; these are ours.
    """
    channels, height, width = image("cnn3", shape, 4)
    return Layers(
        Channel(),
        *_conv(channels, 32),
        nn.MaxPool2d(2),
        *_conv(32, 64),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), classes),
    )


@MODELS.register("cnn6")
def cnn6(shape: Sequence[int] = (3, 32, 32), classes: int = 10) -> nn.Module:
    """Four convolutions and two dense layers (FedA4).

    The paper says 'six-layer CNN' but gives no widths; these are ours.
    """
    channels, height, width = image("cnn6", shape, 4)
    return Layers(
        Channel(),
        *_conv(channels, 32),
        *_conv(32, 32),
        nn.MaxPool2d(2),
        *_conv(32, 64),
        *_conv(64, 64),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 256),
        nn.ReLU(),
        nn.Linear(256, classes),
    )
