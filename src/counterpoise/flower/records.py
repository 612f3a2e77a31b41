"""Named tensors as Flower's array records, and back. What comes from a node is not trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from io import BytesIO

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, MetricRecord
from numpy.lib import format as npy
from torch import Tensor

from counterpoise.engine.clients.messages import Arrays, show_text

__all__ = ["Unreadable", "from_record", "to_metrics", "to_record"]

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Unreadable(ValueError):
    """A record that does not hold arrays of real numbers. The run's record gives the message as the reason."""


def to_metrics(values: Mapping[str, float | None]) -> MetricRecord | None:
    """The numbers that are known as a record; None if there is none."""
    found = {name: float(value) for name, value in values.items() if value is not None}
    return MetricRecord(found) if found else None  # type: ignore[arg-type]


def to_record(arrays: Mapping[str, Tensor]) -> ArrayRecord:
    """Tensors as a record."""
    return ArrayRecord({name: Array(tensor.detach().cpu().numpy()) for name, tensor in arrays.items()})


def from_record(record: ArrayRecord) -> Arrays:
    """The tensors of a record, read without pickle and without more memory than the bytes received."""
    return {name: _tensor(name, array) for name, array in record.items()}


def _tensor(name: str, array: Array) -> Tensor:
    try:
        return _parse(array.data)
    except Unreadable as error:
        raise Unreadable(f"{show_text(name)} {error}") from None
    except Exception:  # whatever numpy raises for a stranger's bytes, such as a shape that no array can have
        raise Unreadable(f"{show_text(name)} is not an array in NumPy's format") from None


def _parse(data: bytes) -> Tensor:
    # Not Array.numpy(): it allocates memory for any shape that the sender's header claims before it looks at the data.
    stream = BytesIO(data)
    shape, by_columns, dtype = _HEADERS[npy.read_magic(stream)](stream)
    numbers = memoryview(data)[stream.tell() :]
    if dtype.kind not in "fiu" or dtype.itemsize > 8:
        raise Unreadable("is not made of real numbers")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(numbers):
        raise Unreadable("is cut short or too long for its shape")
    values = np.frombuffer(numbers, dtype).reshape(shape, order="F" if by_columns else "C")
    signed = values if dtype.kind != "u" or dtype.itemsize == 1 else values.astype(np.float64)
    return torch.from_numpy(np.array(signed, dtype=signed.dtype.newbyteorder("=")))
