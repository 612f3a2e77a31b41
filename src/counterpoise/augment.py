"""Augmentation keyed by sample: the same key gives the same picture, wherever and whenever it is made.

An augmentation is any function ``(inputs [S, ...], keys [S]) -> inputs``, so users can write their own. It may return
smaller pictures, all of one size. The model is then made for that size and measured on the centres of whole pictures.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from counterpoise.errors import CounterpoiseError
from counterpoise.local import Augment
from counterpoise.randomness import counter, uniform
from counterpoise.registry import Option, Registry

__all__ = ["AUGMENTS", "crop", "flip", "flip_and_crop"]

AUGMENTS: Registry[Augment] = Registry("augmentation", called="augment(inputs, keys)")

Padding = Annotated[int, Option("pixels added on each side before the crop", low=0)]
Fill = Annotated[Literal["zeros", "reflect"], Option("what is added: zeros, or the picture mirrored at its edges")]
Chance = Annotated[float, Option("how often a picture is cropped at random and not at its centre", above=0, high=1)]
Size = Annotated[int | None, Option("height and width of the result; by default those of the picture", low=1)]


@AUGMENTS.register("flip")
def flip() -> Augment:
    """Mirror a random half of the pictures, left to right."""

    def apply(inputs: Tensor, keys: Tensor) -> Tensor:
        chosen = counter(keys, 1) < 0
        return torch.where(chosen.view(-1, *(1,) * (inputs.ndim - 1)), inputs.flip(-1), inputs)

    return apply


@AUGMENTS.register("crop")
def crop(padding: Padding = 4, fill: Fill = "zeros", chance: Chance = 1.0, size: Size = None) -> Augment:
    """Cut a picture out of itself with a frame around it, at a random place."""
    if not padding and size is None:
        raise CounterpoiseError("augmentation crop changes nothing without padding; give it padding or a size.")

    def apply(inputs: Tensor, keys: Tensor) -> Tensor:
        _check_pictures(inputs, padding if fill == "reflect" else 0, size or 1)
        height, width = inputs.shape[-2:]
        tall, wide = (height, width) if size is None else (size, size)
        most_down, most_right = height + 2 * padding - tall, width + 2 * padding - wide
        down, right = counter(keys, 2) % (most_down + 1), counter(keys, 3) % (most_right + 1)
        if chance < 1:
            chosen = uniform(counter(keys, 4), torch.float32) < chance
            down, right = torch.where(chosen, down, most_down // 2), torch.where(chosen, right, most_right // 2)
        pictures = inputs.reshape(len(inputs), -1, height, width)
        framed = F.pad(pictures, (padding,) * 4, "reflect" if fill == "reflect" else "constant")
        rows = (down[:, None] + torch.arange(tall, device=inputs.device))[:, None, :, None]
        columns = (right[:, None] + torch.arange(wide, device=inputs.device))[:, None, None, :]
        samples = torch.arange(len(inputs), device=inputs.device)[:, None, None, None]
        channels = torch.arange(framed.shape[1], device=inputs.device)[None, :, None, None]
        return framed[samples, channels, rows, columns].view(*inputs.shape[:-2], tall, wide)

    return apply


def _check_pictures(inputs: Tensor, mirrored: int, size: int) -> None:
    """Refuse samples that are no pictures, and pictures too small to be mirrored by this much or cut to this size."""
    if inputs.ndim < 3:
        raise CounterpoiseError(
            f"augmentation crop is for pictures, but these samples have shape {tuple(inputs.shape[1:])}."
        )
    height, width = inputs.shape[-2:]
    if mirrored >= min(height, width):
        raise CounterpoiseError(
            f"augmentation crop: a picture of {height} x {width} pixels cannot be mirrored by {mirrored} at its edges. "
            "Use less padding."
        )
    if size > min(height, width):
        raise CounterpoiseError(f"augmentation crop: {height} x {width} pixels cannot be cropped to a size of {size}.")


@AUGMENTS.register("flip-and-crop")
def flip_and_crop(padding: Padding = 4, fill: Fill = "zeros", chance: Chance = 1.0, size: Size = None) -> Augment:
    """Flip, then crop, as is usual for CIFAR."""
    first, second = flip(), crop(padding, fill, chance, size)
    return lambda inputs, keys: second(first(inputs, keys), keys)
