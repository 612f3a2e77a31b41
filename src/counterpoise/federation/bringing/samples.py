"""What one sample becomes: an array of numbers, with the channels of a picture first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError, brief
from counterpoise.federation.bringing.source import Block
from counterpoise.federation.readers import channels_first

__all__ = ["check_alike", "input_array", "inputs_of", "targets_of"]


def inputs_of(block: Block, where: str, first: int) -> np.ndarray:
    """The inputs of a block as one array; `first` is the number of its first sample."""
    if isinstance(block, np.ndarray | Tensor):
        return channels_first(_numbers(block, f"{where}: inputs"))
    arrays = [input_array(value, f"{where}: the input of sample {first + i}") for i, value in enumerate(block)]
    for i, array in enumerate(arrays):
        check_alike(array, arrays[0].shape, arrays[0].dtype, f"{where}: sample {first + i}")
    return channels_first(np.stack(arrays))


def check_alike(sample: np.ndarray, shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> None:
    """Refuse a sample that does not fit into one array with the others."""
    if sample.shape != shape:
        raise CounterpoiseError(
            f"{what} has shape {sample.shape}, but others have shape {shape}. Bring samples to one shape: resize pictures, "
            "and pad or crop what is not a picture."
        )
    if sample.dtype != dtype:
        raise CounterpoiseError(f"{what} is of type {sample.dtype}, but others are of type {dtype}. Give all the same.")


def input_array(value: Any, what: str) -> np.ndarray:
    """One input as an array; a PIL picture becomes bytes with its channels first."""
    if isinstance(value, Mapping | tuple):
        parts = ", ".join(map(repr, value)) if isinstance(value, Mapping) else f"{len(value)} parts"
        raise CounterpoiseError(
            f"{what} is a {type(value).__name__} ({parts}); a model gets one array per sample. Let the data set give one "
            "tensor."
        )
    if isinstance(value, str | bytes):
        raise CounterpoiseError(f"{what} is text, {brief(value)}; turn it into numbers (tokens) first.")
    if _is_picture(value):
        return picture_array(value, what)
    if not isinstance(value, np.ndarray | Tensor):
        try:
            value = np.asarray(value)
        except (ValueError, TypeError, RuntimeError):
            raise CounterpoiseError(f"{what} does not form one array; it is of type {type(value).__name__}.") from None
    return _numbers(value, what)


def _numbers(value: np.ndarray | Tensor, what: str) -> np.ndarray:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    if value.dtype.kind not in "buif":
        raise CounterpoiseError(f"{what} is of type {value.dtype}; give numbers.")
    return value


# ---------------------------------------------------------------- pictures

_GREY, _DEEP = ("1", "L", "LA"), ("I", "F")
"""Modes of PIL: shades of grey in a byte, and more than a byte for each pixel."""


def _is_picture(value: Any) -> bool:
    """Whether it is a picture of PIL, which need not be installed."""
    return type(value).__module__.partition(".")[0] == "PIL" and hasattr(value, "convert")


def picture_array(picture: Any, what: str, colour: bool | None = None) -> np.ndarray:
    """Bytes ``[channels, height, width]``: one channel for shades of grey, three for colours."""
    if picture.mode.startswith(_DEEP):
        raise CounterpoiseError(
            f"{what} is a picture with more than a byte per pixel (mode {picture.mode}). Scale it to bytes, or give arrays."
        )
    if colour is None:
        colour = picture.mode not in _GREY
    if picture.mode == "P":
        picture = picture.convert("RGBA")  # a palette may have transparent colours
    pixels = np.asarray(picture.convert("RGB" if colour else "L"))
    return pixels.transpose(2, 0, 1) if colour else pixels[None]


# ---------------------------------------------------------------- targets


def targets_of(values: np.ndarray | Sequence[Any], where: str) -> np.ndarray:
    """Targets as one array: class numbers, numbers, arrays of numbers, or text."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "buifU":
        made = values
    elif any(isinstance(value, str) for value in values):
        made = _texts(values, where)
    else:
        made = _stacked(values, where)
    if made.dtype.kind == "U":
        return made
    if made.ndim == 2 and made.shape[1] > 1 and ((made == 0) | (made == 1)).all() and (made.sum(1) == 1).all():
        raise CounterpoiseError(
            f"{where}: targets are one-hot rows of {made.shape[1]} numbers; give class numbers instead, y.argmax(1)."
        )
    return made


def _stacked(values: np.ndarray | Sequence[Any], where: str) -> np.ndarray:
    arrays = [_target(value, where, number) for number, value in enumerate(values)]
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1:
        raise CounterpoiseError(f"{where}: targets differ in shape: {shapes[0]} and {shapes[1]}. Give each the same.")
    return np.stack(arrays)


def _texts(values: np.ndarray | Sequence[Any], where: str) -> np.ndarray:
    for number, value in enumerate(values):
        if not isinstance(value, str):
            raise CounterpoiseError(
                f"{where}: sample {number} has the label {brief(value)}, but others have text. Give text to all or none."
            )
    return np.array(values, dtype=str)


def _target(value: Any, where: str, number: int) -> np.ndarray:
    if value is None or isinstance(value, Mapping):
        said = "no target" if value is None else f"a target in several parts ({', '.join(map(repr, value))})"
        raise CounterpoiseError(
            f"{where}: sample {number} has {said}; give one class number, name or array per sample."
        )
    what = f"{where}: the target of sample {number}"
    if isinstance(value, np.ndarray | Tensor):
        return _numbers(value, what)
    try:
        return _numbers(np.asarray(value), what)
    except (ValueError, TypeError, RuntimeError):
        raise CounterpoiseError(f"{what} does not form one array; it is of type {type(value).__name__}.") from None
