"""The registry of models, and what their factories share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from counterpoise.errors import CounterpoiseError
from counterpoise.registry import Registry

__all__ = ["MODELS", "Channel", "Layers", "image", "one_piece"]

MODELS: Registry[nn.Module] = Registry("model", nn.Module, facts=("shape", "classes"))


class Channel(nn.Module):
    """Adds the channel axis to grey images ``[B, H, W]``; other inputs pass unchanged."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.unsqueeze(1) if inputs.ndim == 3 else inputs


class Layers(nn.Sequential):
    """Layers in sequence. The input of the last one is the representation that MOON uses."""

    def features(self, inputs: Tensor) -> Tensor:
        for layer in list(self)[:-1]:
            inputs = layer(inputs)
        return inputs


def one_piece(name: str, shape: Sequence[int]) -> Sequence[int]:
    """The shape of samples that are one tensor. Samples in parts are refused."""
    if isinstance(shape, Mapping) or any(isinstance(side, Sequence | Mapping) for side in shape):
        parts = ", ".join(map(str, shape)) if isinstance(shape, Mapping) else len(shape)
        raise CounterpoiseError(
            f"model {name} takes samples in one piece; these have parts ({parts}). Give a module of your own, whose forward "
            "takes each part (docs/models.md, samples in parts)."
        )
    return shape


def image(name: str, shape: Sequence[int], least: int) -> tuple[int, int, int]:
    """Channels, height and width of an image model's samples. An error says why it cannot take them."""
    shape = one_piece(name, shape)
    if len(shape) == 2:
        shape = (1, *shape)
    if len(shape) != 3:
        raise CounterpoiseError(f"model {name} takes images; these samples have shape {tuple(shape)}.")
    channels, height, width = shape
    if min(height, width) < least:
        raise CounterpoiseError(
            f"model {name} takes images of at least {least} x {least} pixels; these are {height} x {width}."
        )
    return channels, height, width
