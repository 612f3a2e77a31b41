"""CIFAR's binary version: records of one label byte (CIFAR-100: a coarse and a fine one) and 3,072 pixels.

The same pictures in the same order as the Python version, which is a pickle: reading that would run
whatever code the file holds (https://www.cs.toronto.edu/~kriz/cifar.html).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from counterpoise.federation.readers.bytes import damaged, read_bytes

__all__ = ["read_cifar"]

_PIXELS = 3 * 32 * 32


def read_cifar(paths: Iterable[Path], labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures ``[N, 3, 32, 32]`` and the last of each record's `labels` label bytes."""
    parts = []
    for path in paths:
        raw = read_bytes(path)
        if not len(raw) or len(raw) % (labels + _PIXELS):
            raise damaged(path, f"its length is not a whole number of records of {labels + _PIXELS} bytes")
        parts.append(raw.reshape(-1, labels + _PIXELS))
    images = np.concatenate([records[:, labels:] for records in parts])
    return images.reshape(-1, 3, 32, 32), np.concatenate([records[:, labels - 1] for records in parts])
