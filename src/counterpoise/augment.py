"""Augmentation keyed by sample: the same key gives the same picture, wherever and whenever it is made.

An augmentation is any function ``(inputs [S, ...], keys [S]) -> inputs``, so users can write their own.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from counterpoise.local import Augment
from counterpoise.randomness import counter
from counterpoise.registry import Option, Registry

__all__ = ["AUGMENTS", "crop", "flip", "flip_and_crop"]

AUGMENTS: Registry[Augment] = Registry("augmentation")


@AUGMENTS.register("flip")
def flip() -> Augment:
    """Mirror a random half of the pictures, left to right."""

    def apply(inputs: Tensor, keys: Tensor) -> Tensor:
        chosen = counter(keys, 1) < 0
        return torch.where(chosen.view(-1, *(1,) * (inputs.ndim - 1)), inputs.flip(-1), inputs)

    return apply


@AUGMENTS.register("crop")
def crop(padding: Annotated[int, Option("pixels on each side", low=1)] = 4) -> Augment:
    """Shift a picture at random within a frame of zeros."""

    def apply(inputs: Tensor, keys: Tensor) -> Tensor:
        height, width = inputs.shape[-2:]
        span = 2 * padding + 1
        down, right = counter(keys, 2) % span, counter(keys, 3) % span
        framed = F.pad(inputs, (padding,) * 4).view(len(inputs), -1, height + 2 * padding, width + 2 * padding)
        rows = (down[:, None] + torch.arange(height, device=inputs.device))[:, None, :, None]
        columns = (right[:, None] + torch.arange(width, device=inputs.device))[:, None, None, :]
        samples = torch.arange(len(inputs), device=inputs.device)[:, None, None, None]
        channels = torch.arange(framed.shape[1], device=inputs.device)[None, :, None, None]
        return framed[samples, channels, rows, columns].view(inputs.shape)

    return apply


@AUGMENTS.register("flip-and-crop")
def flip_and_crop(padding: Annotated[int, Option("pixels on each side", low=1)] = 4) -> Augment:
    """Flip, then crop, as is usual for CIFAR."""
    first, second = flip(), crop(padding)
    return lambda inputs, keys: second(first(inputs, keys), keys)
