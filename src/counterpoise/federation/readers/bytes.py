"""A file's bytes, unpacked where it is compressed, or a sentence about why not."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from counterpoise.errors import CounterpoiseError

__all__ = ["damaged", "read_bytes"]


def damaged(path: Path, why: str) -> CounterpoiseError:
    """The error for a file that is not what its name says."""
    return CounterpoiseError(f"{path} cannot be read: {why}. Remove it, and fetch it again.")


def read_bytes(path: Path) -> np.ndarray:
    """The content as bytes, through gzip if the name ends in .gz."""
    try:
        raw = path.read_bytes()
        return np.frombuffer(gzip.decompress(raw) if path.suffix == ".gz" else raw, np.uint8)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, f"it is not a whole gzip file ({error})") from None
    except OSError as error:
        raise CounterpoiseError(f"{path} cannot be read: {error.strerror or error}.") from None
