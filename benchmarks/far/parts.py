"""Bring a data set of 32 x 32 colour pictures to a machine that takes only small uploads: losslessly, in twelve parts.

    python benchmarks/far/parts.py split cifar10.npz PARTS     here: CIFAR-10 becomes 101 MB instead of 180
    python benchmarks/far/parts.py join PARTS cifar10.npz      there, once all parts have arrived

A part holds the errors of a prediction of every byte from its neighbours (the median of left, above and
left + above - corner; green as it is, red and blue less green), compressed by xz. Joining takes some seconds.
"""

from __future__ import annotations

import argparse
import lzma
import zipfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

PARTS, KEYS = 12, ("x_train", "x_test")
Planes = npt.NDArray[np.int16]


def predicted(planes: Planes, row: int, column: int) -> Planes | int:
    """What is expected at one place of every picture."""
    if not row and not column:
        return 0
    if not row:
        return planes[:, 0, column - 1]
    if not column:
        return planes[:, row - 1, 0]
    left, above, corner = planes[:, row, column - 1], planes[:, row - 1, column], planes[:, row - 1, column - 1]
    low, high = np.minimum(left, above), np.maximum(left, above)
    return np.where(corner >= high, low, np.where(corner <= low, high, left + above - corner))


def packed(pictures: npt.NDArray[np.uint8]) -> bytes:
    red, green, blue = (pictures[..., colour].astype(np.int16) for colour in range(3))
    planes = np.concatenate([green, (red - green) % 256, (blue - green) % 256])
    errors = np.zeros(planes.shape, np.uint8)
    for row in range(planes.shape[1]):
        for column in range(planes.shape[2]):
            errors[:, row, column] = (planes[:, row, column] - predicted(planes, row, column)) % 256
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 0, "pb": 0}]
    return lzma.compress(errors.tobytes(), filters=filters)


def unpacked(path: Path, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    errors = np.frombuffer(lzma.decompress(path.read_bytes()), np.uint8).reshape(-1, *shape).astype(np.int16)
    planes = np.zeros_like(errors)
    for row in range(shape[0]):
        for column in range(shape[1]):
            planes[:, row, column] = (errors[:, row, column] + predicted(planes, row, column)) % 256
    green, red, blue = np.split(planes, 3)
    return np.stack([(red + green) % 256, green, (blue + green) % 256], -1).astype(np.uint8)


def split(source: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    whole = np.load(source)
    pictures = np.concatenate([whole[key] for key in KEYS])
    with ProcessPoolExecutor() as workers:
        for number, part in enumerate(workers.map(packed, np.array_split(pictures, PARTS))):
            (folder / f"{number:02d}.xz").write_bytes(part)
    rest = {key: whole[key] for key in whole.files if key not in KEYS}
    np.savez(folder / "rest.npz", sizes=[len(whole[key]) for key in KEYS], shape=pictures.shape[1:3], **rest)


def join(folder: Path, target: Path) -> None:
    rest = dict(np.load(folder / "rest.npz"))
    sizes, shape = rest.pop("sizes"), tuple(rest.pop("shape"))
    with ProcessPoolExecutor() as workers:
        parts = list(workers.map(partial(unpacked, shape=shape), sorted(folder.glob("*.xz"))))
    if (count := sum(map(len, parts))) != sizes.sum():
        raise SystemExit(f"{folder} holds {count:,} of {sizes.sum():,} pictures: a part is missing.")
    pictures = np.concatenate(parts)
    whole = dict(zip(KEYS, np.split(pictures, np.cumsum(sizes)[:-1]), strict=True)) | rest
    unfinished = target.with_name(target.name + ".part.npz")  # whoever waits for the target sees only a whole one
    np.savez(unfinished, **whole)
    unfinished.replace(target)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("what", choices=["split", "join"])
    words.add_argument("source", type=Path)
    words.add_argument("target", type=Path)
    given = words.parse_args()
    try:
        {"split": split, "join": join}[given.what](given.source, given.target)
    except (OSError, lzma.LZMAError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise SystemExit(f"{given.what} {given.source}: {error}") from None


if __name__ == "__main__":
    main()
