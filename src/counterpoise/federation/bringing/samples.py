"""What one sample becomes: an array of numbers, with the channels of a picture first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError, brief
from counterpoise.federation.bringing.source import Block, Later
from counterpoise.federation.readers import channels_first
from counterpoise.federation.structure import check_dense

__all__ = ["Form", "check_alike", "has_colour", "inputs_of", "refuse_one_hot", "target_array", "targets_of"]


@dataclass(frozen=True)
class Form:
    """What pictures become."""

    size: tuple[int, int] | None = None
    """Their height and width; None to leave them as they are."""
    colour: bool | None = None
    """Three channels or one; None to take as many as the picture has."""

    @classmethod
    def of(cls, resize: object) -> Form:
        """The form that a user asks for: one number for a square, or height and width."""
        if resize is None:
            return cls()
        size = (resize, resize) if isinstance(resize, int) else resize
        if (
            not isinstance(size, tuple | list)
            or len(size) != 2
            or not all(type(n) is int and 0 < n <= _LONGEST for n in size)
        ):
            raise CounterpoiseError(
                f"resize must be a whole number up to {_LONGEST} or a pair (height, width), not {brief(resize)}."
            )
        return cls((size[0], size[1]))


_LONGEST = 10_000


def inputs_of(block: Block, where: str, first: int, form: Form) -> np.ndarray:
    """The inputs of a block as one array; `first` is the number of its first sample."""
    if isinstance(block, np.ndarray | Tensor) and form.size is None:
        return channels_first(_numbers(block, f"{where}: inputs"))

    def made(i: int) -> np.ndarray:
        return _input(block[i], f"{where}: the input of sample {first + i}", form)

    if len(block) > 1 and isinstance(block[0], Later):  # decoding pictures leaves Python alone
        with ThreadPoolExecutor() as pool:
            arrays = list(pool.map(made, range(len(block))))
    else:
        arrays = [made(i) for i in range(len(block))]
    for i, array in enumerate(arrays):
        check_alike(array, arrays[0].shape, arrays[0].dtype, f"{where}: sample {first + i}")
    return channels_first(np.stack(arrays))


def check_alike(sample: np.ndarray, shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> None:
    """Refuse a sample that does not fit into one array with the others."""
    if sample.shape != shape:
        raise CounterpoiseError(
            f"{what} has shape {sample.shape}, but others have shape {shape}. Bring samples to one shape: pictures with "
            "resize=(height, width), texts with cp.padded(texts, token=0), others by padding or cropping."
        )
    if sample.dtype != dtype:
        raise CounterpoiseError(f"{what} is of type {sample.dtype}, but others are of type {dtype}. Give all the same.")


def _input(value: Any, what: str, form: Form) -> np.ndarray:
    """One input as an array; a PIL picture becomes bytes with its channels first."""
    if isinstance(value, Later):
        value = value.make()
    if isinstance(value, Mapping | tuple):
        has = "parts within a part" if value else "no parts"
        raise CounterpoiseError(f"{what} has {has}; let the data set give one tensor for each part.")
    if isinstance(value, str | bytes):
        raise CounterpoiseError(f"{what} is text, {brief(value)}; turn it into numbers (tokens) first.")
    if _is_picture(value):
        return _picture(value, what, form)
    if not isinstance(value, np.ndarray | Tensor):
        try:
            value = np.asarray(value)
        except (ValueError, TypeError, RuntimeError):
            raise CounterpoiseError(
                f"{what} forms no array of numbers; it is of type {type(value).__name__}."
            ) from None
    array = _numbers(value, what)
    return array if form.size is None else _resized(array, what, form)


def _numbers(value: np.ndarray | Tensor, what: str) -> np.ndarray:
    if isinstance(value, Tensor):
        check_dense(value, what)
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    if value.dtype.kind not in "buif":
        raise CounterpoiseError(f"{what}: the type is {value.dtype}; give whole numbers, fractions or bools.")
    return value


# ---------------------------------------------------------------- pictures

_GREY, _DEEP = ("1", "L", "LA", "La"), ("I", "F")
"""Modes of PIL: shades of grey in a byte, and more than a byte for each pixel."""
_BILINEAR = 2
"""PIL's number for it."""


def _is_picture(value: Any) -> bool:
    """Whether it is a picture of PIL, which need not be installed."""
    return type(value).__module__.partition(".")[0] == "PIL" and hasattr(value, "convert")


def has_colour(picture: Any) -> bool:
    """Whether a picture of PIL has colours, or may have."""
    return picture.mode not in _GREY and not picture.mode.startswith(_DEEP)


def _picture(picture: Any, what: str, form: Form) -> np.ndarray:
    """Bytes ``[channels, height, width]``: one channel for shades of grey, three for colours."""
    if picture.mode.startswith(_DEEP):
        raise CounterpoiseError(
            f"{what} is a picture with more than a byte per pixel (mode {picture.mode}). Scale it to bytes, or give arrays."
        )
    if has_colour(picture) and form.colour is False:
        raise CounterpoiseError(f"{what} has colours, but earlier ones are grey. Convert all of them: .convert('RGB').")
    colour = has_colour(picture) if form.colour is None else form.colour
    if picture.mode == "P":
        picture = picture.convert("RGBA")  # a palette may have transparent colours
    picture = picture.convert("RGB" if colour else "L")
    if form.size is not None:
        picture = picture.resize(form.size[::-1], _BILINEAR)
    pixels = np.asarray(picture)
    return pixels.transpose(2, 0, 1) if colour else pixels[None]


def _resized(array: np.ndarray, what: str, form: Form) -> np.ndarray:
    """Bytes of a picture in another size."""
    pixels = channels_first(array[None])[0]
    if array.dtype != np.uint8 or pixels.ndim != 3 or len(pixels) not in (1, 3):
        raise CounterpoiseError(
            f"{what} is no picture, but an array of type {array.dtype} and shape {array.shape}; resize= is for pictures. "
            "Resize it in the data set."
        )
    try:
        from PIL import Image
    except ImportError:
        raise CounterpoiseError("resize needs Pillow. Install it with: pip install pillow") from None
    return _picture(Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)), what, form)


# ---------------------------------------------------------------- targets


def targets_of(values: np.ndarray | Sequence[Any], where: str) -> np.ndarray:
    """Targets as one array: class numbers, numbers, arrays of numbers, or text."""
    made = _texts(values, where) if _has_text(values) else target_array(values, where)
    refuse_one_hot(made, where)
    return made


def refuse_one_hot(made: np.ndarray, where: str) -> None:
    """Refuse rows with a single 1, because they would be taken for several targets of each sample."""
    if made.dtype.kind == "U" or made.ndim != 2 or made.shape[1] < 2:
        return
    if ((made == 0) | (made == 1)).all() and (made.sum(1) == 1).all():
        raise CounterpoiseError(
            f"{where}: targets are one-hot rows of {made.shape[1]} numbers; give class numbers instead, y.argmax(1)."
        )


def target_array(values: np.ndarray | Sequence[Any], where: str) -> np.ndarray:
    """Targets, or one part of them, as an array of numbers; text as it is if it is an array already."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "buifU":
        return values
    return _stacked(values, where)


def _has_text(values: np.ndarray | Sequence[Any]) -> bool:
    plain = isinstance(values, np.ndarray) and values.dtype.kind in "buifU"
    return not plain and any(isinstance(value, str) for value in values)


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
        said = "no target" if value is None else f"parts within its target ({', '.join(map(repr, value))})"
        raise CounterpoiseError(
            f"{where}: sample {number} has {said}; give one class number, name or array per sample."
        )
    what = f"{where}: the target of sample {number}"
    if isinstance(value, np.ndarray | Tensor):
        return _numbers(value, what)
    try:
        return _numbers(np.asarray(value), what)
    except (ValueError, TypeError, RuntimeError):
        raise CounterpoiseError(f"{what} forms no array of numbers; it is of type {type(value).__name__}.") from None
