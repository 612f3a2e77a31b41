"""Named tensors as Flower's array records, and back. What comes from a node is read with suspicion."""

from __future__ import annotations

import math
from collections.abc import Mapping
from io import BytesIO

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from torch import Tensor

from counterpoise.engine.messages import Arrays, shown

__all__ = ["Unreadable", "from_record", "to_record"]

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Unreadable(ValueError):
    """A record that does not hold arrays of real numbers. The message is the reason on record."""


def to_record(arrays: Mapping[str, Tensor]) -> ArrayRecord:
    """Tensors as a record."""
    return ArrayRecord({name: Array(tensor.detach().cpu().numpy()) for name, tensor in arrays.items()})


def from_record(record: ArrayRecord) -> Arrays:
    """The tensors of a record. No pickle, and no memory beyond the bytes that came."""
    return {name: _tensor(name, array) for name, array in record.items()}


def _tensor(name: str, array: Array) -> Tensor:
    # Not Array.numpy(): it makes room for whatever shape the sender's header claims, before it looks for the numbers.
    stream = BytesIO(array.data)
    try:
        shape, by_columns, dtype = _HEADERS[npy.read_magic(stream)](stream)
        numbers = memoryview(array.data)[stream.tell() :]
        whole = min(shape, default=0) >= 0 and math.prod(shape) * dtype.itemsize == len(numbers)
    except Exception:  # whatever a stranger's bytes make numpy's parser raise
        raise Unreadable(f"{shown(name)} is not an array in NumPy's format") from None
    if dtype.kind not in "fiu" or dtype.itemsize > 8:
        raise Unreadable(f"{shown(name)} is not made of real numbers")
    if not whole:
        raise Unreadable(f"{shown(name)} is cut short or too long for its shape")
    values = np.frombuffer(numbers, dtype).reshape(shape, order="F" if by_columns else "C")
    signed = values if dtype.kind != "u" or dtype.itemsize == 1 else values.astype(np.float64)
    return torch.from_numpy(np.array(signed, dtype=signed.dtype.newbyteorder("=")))
