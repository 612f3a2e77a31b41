"""Copies of tensors on another device or in another precision, made once and shared as long as somebody holds them."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["replica"]


class _Pair(NamedTuple):
    """The memory of a tensor and of its copy, which is laid out with these strides."""

    source: weakref.ref[torch.UntypedStorage]
    copy: weakref.ref[torch.UntypedStorage]
    strides: tuple[int, ...]


_KNOWN: dict[tuple[Any, ...], _Pair] = {}
"""By a tensor's place in memory and form, and by the device and type of the copy."""


def replica(tensor: Tensor, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor on a device and, if it holds fractions, of a type. Nobody may write to what is returned.

    While a tensor's memory lives, no other lies at its place. So place, form and torch's count of writes identify it.
    """
    dtype = tensor.dtype if dtype is None or not tensor.is_floating_point() else dtype
    empty = torch.empty(0, dtype=dtype, device=tensor.device if device is None else device)
    if (tensor.device, tensor.dtype) == (empty.device, dtype):
        return tensor
    memory, writes = tensor.untyped_storage(), None if tensor.is_inference() else tensor._version
    form = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
    key = (id(memory), writes, *form, empty.device, dtype)
    known = _KNOWN.get(key)
    if known is not None and known.source() is memory and (held := known.copy()) is not None:
        return empty.set_(held, 0, tensor.shape, known.strides)
    made = tensor.detach().to(empty.device, dtype)
    for old in [old for old, pair in list(_KNOWN.items()) if pair.source() is None or pair.copy() is None]:
        _KNOWN.pop(old, None)
    _KNOWN[key] = _Pair(weakref.ref(memory), weakref.ref(made.untyped_storage()), made.stride())
    return made
