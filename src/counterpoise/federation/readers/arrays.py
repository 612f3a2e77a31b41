"""Arrays in an .npz file, or in a folder with one .npy file each; .npy files are memory-mapped, not read."""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from counterpoise.errors import CounterpoiseError
from counterpoise.memory import bytes_in_words, machine_memory

__all__ = ["Raw", "channels_first", "read_archive", "read_arrays"]

_NAMES = {
    "x_train": ("x_train", "train_images", "x"),
    "y_train": ("y_train", "train_labels", "y"),
    "x_test": ("x_test", "test_images"),
    "y_test": ("y_test", "test_labels"),
    "identity_train": ("identity_train", "identity"),
}
"""The names that each array may have: ours, MedMNIST's, and the plainest."""


class Raw(NamedTuple):
    """A data set's arrays."""

    x_train: Any
    """One array, or a dictionary or tuple of arrays for samples in parts."""
    y_train: np.ndarray
    x_test: Any = None
    y_test: np.ndarray | None = None
    identity_train: np.ndarray | None = None
    """Who each training sample comes from, if known."""
    peak: int = 255
    """The largest value a byte of a picture can have."""
    scaling: str = "unit"
    """How bytes become numbers, unless a user says otherwise."""
    class_names: tuple[str, ...] | None = None
    """What class numbers stand for, if classes have names."""


def read_arrays(path: Path) -> Raw:
    """The arrays ``x_train``, ``y_train``, ``x_test``, ``y_test`` of a file or folder; the last two may be missing.

    MedMNIST's names (``train_images``, ...) work too, and so do ``x`` and ``y``. Byte pictures with
    channels last are turned to channels first, and grey ones get a channel axis.
    """
    wanted = {name for names in _NAMES.values() for name in names}
    found = _folder(path) if path.is_dir() else read_archive(path, wanted)
    there = {ours: found[name] for ours, names in _NAMES.items() for name in names[::-1] if name in found}
    if not {"x_train", "y_train"} <= there.keys():
        raise CounterpoiseError(
            f"{path} holds {', '.join(sorted(found)) or 'no arrays'}; a data set needs x_train and y_train, "
            "and for a test set x_test and y_test."
        )
    if ("x_test" in there) != ("y_test" in there):
        raise CounterpoiseError(f"{path} holds one of x_test and y_test without the other.")
    for name in there.keys() & {"x_train", "x_test"}:
        there[name] = channels_first(there[name])
    return Raw(**there)  # type: ignore[arg-type]


def channels_first(x: np.ndarray) -> np.ndarray:
    """Byte pictures with channels first, and a channel axis for grey ones; other arrays unchanged."""
    if x.dtype != np.uint8:
        return x
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return x


def _folder(path: Path) -> Mapping[str, np.ndarray]:
    files = sorted(path.glob("*.npy"))
    with _explain_errors(path):
        # Copy-on-write: torch asks for writable memory, and the file stays as it is.
        return {file.stem: np.load(file, mmap_mode="c", allow_pickle=False) for file in files}


def read_archive(path: Path, wanted: Container[str]) -> Mapping[str, np.ndarray]:
    """The arrays of an .npz file; unwanted ones are named but not read.

    A few kilobytes can unpack to any size, so we never read more than the archive says its arrays take,
    and refuse more than half of the machine's memory. NumPy allocates what an array's own header claims,
    so a header that claims more than the archive holds is refused before.
    """
    with _explain_errors(path), path.open("rb") as file:
        if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
            return {"a single array": np.empty(0)}
        file.seek(0)
        archive = np.load(file, allow_pickle=False)
        entries = [e for e in archive.zip.infolist() if e.filename.removesuffix(".npy") in wanted]
        needs, most = sum(e.file_size for e in entries), _most()
        if needs > most:
            raise CounterpoiseError(
                f"{path} unpacks to {bytes_in_words(needs)}, more than half of this machine's memory "
                f"({bytes_in_words(most)}). Use a folder of .npy files, which are mapped and may be larger."
            )
        for entry in entries:
            _check_header(archive.zip, entry, path)
        return {name: archive[name] if name in wanted else np.empty(0) for name in archive.files}


def _check_header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> None:
    """Refuse an array whose header claims more bytes than follow it."""
    with archive.open(entry) as file:
        old = npy.read_magic(file) == (1, 0)
        shape, _, dtype = (npy.read_array_header_1_0 if old else npy.read_array_header_2_0)(file)
        claims, holds = math.prod(shape) * max(dtype.itemsize, 1), entry.file_size - file.tell()
    if claims > holds and not dtype.hasobject:  # objects are refused when they are read
        raise CounterpoiseError(
            f"{path} is damaged: the header of its array {entry.filename.removesuffix('.npy')} claims "
            f"{bytes_in_words(claims)}, and {bytes_in_words(holds)} follow. Make or download the file again."
        )


def _most() -> int:
    return (machine_memory() or 2**36) // 2


@contextlib.contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise CounterpoiseError(f"There is no file {path}.") from None
    except CounterpoiseError:
        raise
    except Exception as error:  # NumPy, zipfile and each decompressor raise their own for a damaged file
        why = "it is damaged, or holds Python objects, which are not loaded" if "pickle" in str(error) else error
        raise CounterpoiseError(f"{path} does not hold plain NumPy arrays: {why}.") from None
