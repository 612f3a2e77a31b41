"""What users give as inputs and targets, as tensors: one tensor, or a tuple or dictionary of them for samples in parts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from counterpoise.errors import CounterpoiseError
from counterpoise.flat import pieces

__all__ = [
    "by_part",
    "check_alike",
    "check_counts",
    "check_dense",
    "is_structured",
    "parts",
    "shape_in_words",
    "tree_of",
]


def is_structured(given: object) -> bool:
    """Whether samples are given in parts: by name, or as a tuple of arrays with a row for each sample."""
    if isinstance(given, Mapping):
        return True
    return isinstance(given, tuple) and len(given) > 0 and all(is_structured(p) or _has_rows(p) for p in given)


def _has_rows(part: object) -> bool:
    return isinstance(part, np.ndarray | Tensor) and part.ndim > 0


def tree_of(given: Any, what: str, where: str) -> Any:
    """A tensor, or a tuple or dictionary of them, from arrays or tensors; the numbers are checked to be finite."""
    if not is_structured(given):
        return _tensor(given, what, where)
    if isinstance(given, tuple):
        return tuple(_part(part, f"{what}[{i}]", where) for i, part in enumerate(given))
    if not given or not all(isinstance(name, str) for name in given):
        raise CounterpoiseError(f"{where}: {what} in a dictionary need names that are text, and at least one part.")
    return {name: _part(given[name], f"{what}[{name!r}]", where) for name in sorted(given)}


def _part(given: Any, what: str, where: str) -> Any:
    made = tree_of(given, what, where)
    if isinstance(made, Tensor) and made.dtype == torch.uint8 and made.ndim < 3:
        raise CounterpoiseError(
            f"{where}: {what} are bytes, which count as pixels of pictures and are scaled. Give tokens and masks as "
            "int64 or bool: x.astype('int64')."
        )
    return made


def check_dense(given: object, what: str) -> None:
    """Refuse a tensor that does not hold one number after the other, and an array that hides some of its numbers."""
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        raise CounterpoiseError(
            f"{what}: some values are masked. Fill them in, x.filled(0), or leave these samples out."
        )
    if isinstance(given, Tensor) and _is_odd(given):
        raise CounterpoiseError(
            f"{what}: this tensor is sparse, nested, quantised or without numbers. Give a plain one, such as x.to_dense()."
        )


def _is_odd(tensor: Tensor) -> bool:
    return tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta


def by_part(function: Callable[..., Any], *given: Any) -> Any:
    """Apply a function to arrays, or to those at the same place in several dictionaries or tuples of arrays."""
    first = given[0]
    if isinstance(first, Mapping):
        return {name: by_part(function, *(one[name] for one in given)) for name in first}
    if isinstance(first, tuple):
        return tuple(by_part(function, *column) for column in zip(*given, strict=True))
    return function(*given)


def parts(tree: Any, what: str) -> dict[str, Tensor]:
    """The tensors of inputs or targets by what a sentence calls them, such as ``inputs['input_ids']``."""
    if isinstance(tree, Tensor):
        return {what: tree}
    named = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {name: tensor for key, part in named for name, tensor in parts(part, f"{what}[{key!r}]").items()}


def shape_in_words(shape: Any) -> str:
    """The shape of a sample as a federation shows it.

    >>> shape_in_words((1, 8, 8)), shape_in_words({"ids": (5,), "length": ()})
    ('1x8x8', 'ids 5, length a number')
    """
    if isinstance(shape, tuple) and all(isinstance(side, int) for side in shape):
        return "x".join(map(str, shape)) or "a number"
    named = (
        ((f"{name} ", part) for name, part in shape.items()) if isinstance(shape, dict) else (("", p) for p in shape)
    )
    return ", ".join(f"{name}{shape_in_words(part)}" for name, part in named)


def check_counts(inputs: Any, targets: Any, where: str) -> None:
    """Refuse inputs and targets that do not have a row for each sample."""
    found = parts(inputs, "inputs") | parts(targets, "targets")
    if all(tensor.ndim for tensor in found.values()) and len({len(tensor) for tensor in found.values()}) == 1:
        return
    shapes = [f"{name} of shape {tuple(tensor.shape)}" for name, tensor in found.items()]
    stacked = "" if len(found) == 2 else " A tuple holds the parts of all samples; stack single samples: np.stack(x)."
    raise CounterpoiseError(
        f"{where}: {', '.join(shapes[:-1])} and {shapes[-1]} do not hold the same number of samples along their first "
        f"axis.{stacked}"
    )


def check_alike(tree: Any, where: str, first: Any, whose: str, what: str, types: bool = False) -> None:
    """Refuse inputs or targets that have other parts, shapes or (with `types`) types than those of `whose`."""
    mine, theirs = parts(tree, what), parts(first, what)
    if mine.keys() != theirs.keys():
        raise CounterpoiseError(
            f"{where} has {', '.join(mine)}, but {whose} {_has(whose)} {', '.join(theirs)}. Give the same parts to all."
        )
    for name, tensor in mine.items():
        other = theirs[name]
        if tensor.shape[1:] != other.shape[1:]:
            raise CounterpoiseError(
                f"{where} has {name} of shape {tuple(tensor.shape[1:])} for a sample, but {whose} {_has(whose)} "
                f"{tuple(other.shape[1:])}. Bring samples to one shape; texts with cp.padded(texts, token=0, length=...)."
            )
        alike = tensor.dtype == other.dtype or (tensor.is_floating_point() and other.is_floating_point())
        if types and not alike:  # fractions of any width become those of the model
            mine_is, other_is = (str(kind).removeprefix("torch.") for kind in (tensor.dtype, other.dtype))
            raise CounterpoiseError(
                f"{where} has {name} of type {mine_is}, but {whose} {_has(whose)} {other_is}. Give all the same type."
            )


def _has(whose: str) -> str:
    return "have" if whose.endswith("clients") else "has"


def _tensor(array: object, what: str, where: str) -> Tensor:
    if isinstance(array, Dataset):
        raise CounterpoiseError(
            f"{where}: {what} are a torch Dataset. Give it to Federation.from_datasets, which turns it into arrays."
        )
    check_dense(array, f"{where}: {what}")
    if not isinstance(array, Tensor):
        try:
            array = np.asarray(array)
        except (ValueError, TypeError, RuntimeError):
            raise CounterpoiseError(
                f"{where}: {what} do not form one array, perhaps because samples differ in shape. "
                "Pad or crop them to one shape; texts with cp.padded(texts, token=0)."
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
