"""Arrays of samples, kept raw until a batch is taken."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError, brief
from counterpoise.federation.structure import check_counts, tree_of
from counterpoise.replicas import replica
from counterpoise.trees import leaves, mapped, select

__all__ = ["Samples"]


@dataclass(frozen=True)
class Samples:
    """Inputs and targets, one row per sample. Bytes stay bytes until a batch is taken.

    Either is one tensor, or a tuple or dictionary of tensors. A batch of byte inputs becomes
    ``inputs * scale + shift``; both broadcast over one sample.
    """

    inputs: Any
    targets: Any
    scale: Tensor | float = 1.0 / 255
    shift: Tensor | float = 0.0
    crop: tuple[int, int] | None = None
    """If an augmentation cuts pictures: the height and width that it leaves. In evaluation, a model gets the centres."""
    per_picture: bool = False
    """Whether a model takes each picture with mean 0 and standard deviation 1 of its own."""

    def __post_init__(self) -> None:
        if (self.crop is not None or self.per_picture) and not isinstance(self.inputs, Tensor):
            raise CounterpoiseError("Samples in parts can be neither cropped nor scaled picture by picture.")

    def __len__(self) -> int:
        return int(next(leaves(self.targets)).shape[0])

    @property
    def device(self) -> torch.device:
        return next(leaves(self.targets)).device

    @property
    def labels(self) -> Tensor:
        """The targets, in which recipes look for class numbers; targets in parts have none, so only places for them."""
        return self.targets if isinstance(self.targets, Tensor) else torch.zeros(len(self), len(self.targets))

    @classmethod
    def of(
        cls,
        inputs: Any,
        targets: Any,
        scale: Tensor | float = 1.0 / 255,
        shift: Tensor | float = 0.0,
        where: str = "the data",
    ) -> Samples:
        """Samples from arrays or tensors, after checks that the numbers are finite and every input has a target."""
        for name, given in (("scale", scale), ("shift", shift)):
            if not isinstance(given, Real | Tensor):
                raise CounterpoiseError(f"{name} must be a number or a tensor of them, not {brief(given)}.")
        x, y = tree_of(inputs, "inputs", where), tree_of(targets, "targets", where)
        check_counts(x, y, where)
        y = mapped(lambda t: t if t.is_floating_point() else t.to(torch.int64), y)
        if isinstance(y, Tensor) and not y.is_floating_point() and y.ndim == 2 and y.shape[1] == 1:
            y = y.squeeze(1)
        return cls(x, y, scale, shift)

    @property
    def sequences(self) -> bool:
        """Whether each target is a row of whole numbers, such as the tokens that follow those of a text."""
        return isinstance(self.targets, Tensor) and self.targets.ndim == 2 and not self.targets.is_floating_point()

    def to(self, device: torch.device | str) -> Samples:
        """The same samples on a device. Runs in one process that use the same arrays share the copy."""
        scale, shift = (t.to(device) if isinstance(t, Tensor) else t for t in (self.scale, self.shift))
        inputs, targets = (mapped(lambda t: replica(t, device), tree) for tree in (self.inputs, self.targets))
        return replace(self, inputs=inputs, targets=targets, scale=scale, shift=shift)

    def rows(self, rows: Tensor | slice) -> Samples:
        return replace(self, inputs=select(self.inputs, rows), targets=select(self.targets, rows))

    @property
    def shape(self) -> Any:
        """The shape of one sample, as a model takes it; of a sample in parts, a tuple or dictionary of shapes."""
        if not isinstance(self.inputs, Tensor):
            return mapped(lambda t: tuple(t.shape[1:]), self.inputs)
        whole = tuple(self.inputs.shape[1:])
        return whole if self.crop is None else (*whole[:-2], *self.crop)

    @property
    def form(self) -> Any:
        """Names, shapes and types of all that belongs to a sample, to be compared."""
        return mapped(lambda t: (tuple(t.shape[1:]), str(t.dtype)), (self.inputs, self.targets))

    @property
    def numbers(self) -> int:
        """How many numbers the input of one sample has."""
        if isinstance(self.inputs, Tensor):
            return math.prod(self.shape)
        return sum(math.prod(t.shape[1:]) for t in leaves(self.inputs))

    def take(self, rows: Tensor, dtype: torch.dtype) -> tuple[Any, Any]:
        """Inputs and targets of some rows, ready for a model; `rows` may have any shape."""
        inputs, targets = self.take_whole(rows, dtype)
        if self.crop is not None:
            down, right = ((there - seen) // 2 for there, seen in zip(inputs.shape[-2:], self.crop, strict=True))
            inputs = inputs[..., down : down + self.crop[0], right : right + self.crop[1]]
        return self.normalised(inputs), targets

    def normalised(self, inputs: Tensor) -> Tensor:
        """Pictures as a model takes them, after they were cut."""
        if not self.per_picture:
            return inputs
        pixels = tuple(range(-len(self.shape), 0))
        centred = inputs - inputs.mean(pixels, keepdim=True)
        least = math.prod(self.shape) ** -0.5  # for a picture of one colour, as TensorFlow does
        return centred / centred.square().mean(pixels, keepdim=True).sqrt().clamp(min=least)

    def take_whole(self, rows: Tensor, dtype: torch.dtype) -> tuple[Any, Any]:
        """As `take`, but pictures are neither cut nor `normalised`: an augmentation comes before that."""

        def ready(inputs: Tensor) -> Tensor:
            if inputs.dtype == torch.uint8:
                return inputs.to(dtype) * _as(self.scale, dtype) + _as(self.shift, dtype)
            return inputs.to(dtype) if inputs.is_floating_point() else inputs

        targets = mapped(lambda t: t.to(dtype) if t.is_floating_point() else t, select(self.targets, rows))
        return mapped(ready, select(self.inputs, rows)), targets


def _as(value: Tensor | float, dtype: torch.dtype) -> Tensor | float:
    return value.to(dtype) if isinstance(value, Tensor) else value
