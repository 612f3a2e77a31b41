"""A file's bytes, unpacked if it is compressed, or an error that says why not."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from counterpoise.errors import CounterpoiseError

__all__ = ["MOST", "damaged", "read_bytes"]

MOST = 2**30
"""Most bytes of an unpacked file: about five times the largest published one, STL-10's test pictures."""


def damaged(path: Path, why: str) -> CounterpoiseError:
    """The error for a file that is not what its name says."""
    return CounterpoiseError(f"{path} cannot be read: {why}. Remove it, and fetch it again.")


def read_bytes(path: Path) -> np.ndarray:
    """The content as bytes, through gzip if the name ends in .gz."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            raw = file.read(MOST + 1)
        if len(raw) > MOST:
            raise damaged(path, f"it holds more than {MOST} bytes, which no published file does")
        return np.frombuffer(raw, np.uint8)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, f"it is not a whole gzip file ({error})") from None
    except OSError as error:
        raise CounterpoiseError(f"{path} cannot be read: {error.strerror or error}.") from None
