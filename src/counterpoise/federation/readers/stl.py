"""STL-10's binary files: pictures of 3 x 96 x 96 bytes, column by column, and labels from 1.

https://cs.stanford.edu/~acoates/stl10/
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from counterpoise.federation.readers.bytes import damaged, read_bytes

__all__ = ["read_stl_images", "read_stl_labels"]

_PIXELS = 3 * 96 * 96


def read_stl_images(path: Path) -> np.ndarray:
    """Pictures ``[N, 3, 96, 96]``, rows before columns."""
    raw = read_bytes(path)
    if not len(raw) or len(raw) % _PIXELS:
        raise damaged(path, f"its length is not a whole number of pictures of {_PIXELS} bytes")
    return np.ascontiguousarray(raw.reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2))


def read_stl_labels(path: Path) -> np.ndarray:
    """Labels from 0."""
    raw = read_bytes(path)
    if not len(raw) or raw.min() < 1 or raw.max() > 10:
        raise damaged(path, "it does not hold labels from 1 to 10")
    return raw - np.uint8(1)
