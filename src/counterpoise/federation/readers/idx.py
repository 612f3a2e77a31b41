"""The IDX format of MNIST, Fashion-MNIST and QMNIST's labels.

Two zero bytes, a type, the number of dimensions, each dimension as a big-endian 32-bit number, then
the values, big-endian, in C order (http://yann.lecun.com/exdb/mnist/).
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from counterpoise.federation.readers.bytes import damaged, read_bytes

__all__ = ["read_idx"]

_MOST_DIMENSIONS = 4
_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path) -> np.ndarray:
    """The array in an IDX file, in the machine's byte order."""
    raw = read_bytes(path)
    if len(raw) < 4 or raw[0] or raw[1] or int(raw[2]) not in _TYPES or not 1 <= raw[3] <= _MOST_DIMENSIONS:
        raise damaged(path, "it does not begin like an IDX file")
    kind, head = np.dtype(_TYPES[int(raw[2])]), 4 + 4 * int(raw[3])
    shape = raw[4:head].tobytes()
    sizes = tuple(int.from_bytes(shape[i : i + 4], "big") for i in range(0, len(shape), 4))
    if len(raw) != head + math.prod(sizes) * kind.itemsize or 0 in sizes:
        raise damaged(path, f"its header promises an array of shape {sizes}, but its length does not match")
    return raw[head:].view(kind).reshape(sizes).astype(kind.newbyteorder("="))
