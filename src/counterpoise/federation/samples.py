"""Arrays of samples, kept raw until a batch is taken."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from counterpoise.errors import CounterpoiseError

__all__ = ["Samples", "pieces"]

_PIECE = 1 << 24
"""Arrays may be mapped files larger than the memory, so they are looked through in pieces of about this many bytes."""


@dataclass(frozen=True)
class Samples:
    """Inputs and targets, one row per sample. Bytes stay bytes until a batch is taken.

    A batch of byte inputs becomes ``inputs * scale + shift``; both broadcast over one sample.
    """

    inputs: Tensor
    targets: Tensor
    scale: Tensor | float = 1.0 / 255
    shift: Tensor | float = 0.0
    crop: tuple[int, int] | None = None
    """Height and width of the pictures that a model takes, if an augmentation cuts them: otherwise their centres."""
    per_picture: bool = False
    """Whether a model takes each picture with mean 0 and standard deviation 1 of its own."""

    def __len__(self) -> int:
        return int(self.targets.shape[0])

    @classmethod
    def of(
        cls,
        inputs: np.ndarray | Tensor,
        targets: np.ndarray | Tensor,
        scale: Tensor | float = 1.0 / 255,
        shift: Tensor | float = 0.0,
        where: str = "the data",
    ) -> Samples:
        """Samples from arrays or tensors, after checks that the numbers are finite and every input has a target."""
        x, y = _tensor(inputs, "inputs", where), _tensor(targets, "targets", where)
        if x.ndim == 0 or y.ndim == 0 or x.shape[0] != y.shape[0]:
            raise CounterpoiseError(
                f"{where}: inputs of shape {tuple(x.shape)} and targets of shape {tuple(y.shape)} do not hold the same "
                "number of samples along their first axis."
            )
        if not y.is_floating_point():
            y = y.to(torch.int64)
            if y.ndim == 2 and y.shape[1] == 1:
                y = y.squeeze(1)
        return cls(x, y, scale, shift)

    def to(self, device: torch.device | str) -> Samples:
        """The same samples on a device. Runs in one process that use the same arrays share the copy."""
        scale, shift = (t.to(device) if isinstance(t, Tensor) else t for t in (self.scale, self.shift))
        inputs, targets = _copied(self.inputs, device), _copied(self.targets, device)
        return replace(self, inputs=inputs, targets=targets, scale=scale, shift=shift)

    def rows(self, rows: Tensor | slice) -> Samples:
        return replace(self, inputs=self.inputs[rows], targets=self.targets[rows])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample, as a model takes it."""
        whole = tuple(self.inputs.shape[1:])
        return whole if self.crop is None else (*whole[:-2], *self.crop)

    def take(self, rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
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

    def take_whole(self, rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """As `take`, but pictures are neither cut nor `normalised`: an augmentation comes before that."""
        inputs, targets = self.inputs[rows], self.targets[rows]
        if inputs.dtype == torch.uint8:
            inputs = inputs.to(dtype) * _as(self.scale, dtype) + _as(self.shift, dtype)
        elif inputs.is_floating_point():
            inputs = inputs.to(dtype)
        return inputs, targets.to(dtype) if targets.is_floating_point() else targets


def pieces(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor in parts, along its first axis."""
    if tensor.ndim == 0 or not tensor.numel():
        yield tensor
        return
    rows = max(1, _PIECE * len(tensor) // (tensor.numel() * tensor.element_size()))
    for first in range(0, len(tensor), rows):
        yield tensor[first : first + rows]


_COPIES: dict[Any, tuple[weakref.ref[Tensor], weakref.ref[Tensor]]] = {}
"""By place in memory, form and device: a tensor and its copy, as long as somebody holds both."""


def _copied(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A tensor on a device. While a tensor lives, no other lies at its place, so its place and form identify it."""
    if tensor.device == torch.device(device):
        return tensor
    key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, str(device))
    known = _COPIES.get(key)
    copy = None if known is None or known[0]() is None else known[1]()
    if copy is None:
        copy = tensor.to(device)
        for old in [old for old, refs in _COPIES.items() if any(ref() is None for ref in refs)]:
            del _COPIES[old]
        _COPIES[key] = weakref.ref(tensor), weakref.ref(copy)
    return copy


def _as(value: Tensor | float, dtype: torch.dtype) -> Tensor | float:
    return value.to(dtype) if isinstance(value, Tensor) else value


def _tensor(array: object, what: str, where: str) -> Tensor:
    if isinstance(array, Dataset):
        raise CounterpoiseError(
            f"{where}: {what} are a torch Dataset. Give it to Federation.from_datasets, which turns it into arrays."
        )
    if not isinstance(array, Tensor):
        try:
            array = np.asarray(array)
        except (ValueError, TypeError, RuntimeError):
            raise CounterpoiseError(
                f"{where}: {what} do not form one array, perhaps because samples differ in shape. "
                "Pad or crop them to one shape."
            ) from None
        if array.dtype == object or array.dtype.kind not in "buif":
            raise CounterpoiseError(f"{where}: {what} are of type {array.dtype}; give numbers, one row per sample.")
        array = np.ascontiguousarray(array if array.dtype != np.uint16 else array.astype(np.int64))
        with warnings.catch_warnings():  # samples are never written to, so read-only arrays (pandas') need no copy
            warnings.filterwarnings("ignore", "The given NumPy array is not writ", UserWarning)
            array = torch.from_numpy(array)
    if array.is_floating_point() and not all(bool(piece.isfinite().all()) for piece in pieces(array)):
        raise CounterpoiseError(f"{where}: {what} hold NaN or infinity; remove or replace them first.")
    return array
