"""Data in files: which form a file or folder has, and its samples."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from counterpoise.errors import CounterpoiseError, brief
from counterpoise.federation.bringing.pictures import from_pictures
from counterpoise.federation.bringing.source import Columns, Source
from counterpoise.federation.bringing.tables import TABLES, from_table
from counterpoise.federation.readers import read_arrays

__all__ = ["from_path"]


def from_path(path: Path, where: str, columns: Columns, natural: bool) -> tuple[Source, Source | None]:
    """The samples in a file or folder, and those of its test part if it has one."""
    if not os.path.exists(path):  # which takes any text for a path
        raise CounterpoiseError(
            f"{where}: there is no file or folder {brief(str(path))}. For a data set with a name, such as 'mnist', use "
            "cp.load('mnist', partition=...)."
        )
    if path.is_dir():
        if any(path.glob("*.npy")):
            return _arrays(path, where)
        tables = {file.stem: file for file in sorted(path.iterdir()) if file.suffix.lower() in TABLES}
        if "train" not in tables:
            return from_pictures(path, where, columns, natural)
        test = from_table(tables["test"], where, columns) if "test" in tables else None
        return from_table(tables["train"], where, columns), test
    if path.is_file() and path.suffix.lower() in TABLES:
        return from_table(path, where, columns), None
    if path.is_file() and path.suffix == ".npz":
        return _arrays(path, where)
    raise CounterpoiseError(
        f"{where}: {path} is no data set. Give a .csv, .tsv, .parquet or .npz file, a folder of pictures with a folder for "
        "each class, or a folder of .npy files."
    )


def _arrays(path: Path, where: str) -> tuple[Source, Source | None]:
    raw = read_arrays(path)
    train = _source(raw.x_train, raw.y_train, where)
    test = None if raw.x_test is None or raw.y_test is None else _source(raw.x_test, raw.y_test, where)
    return replace(train, identities=raw.identity_train), test


def _source(x: np.ndarray, y: np.ndarray, where: str) -> Source:
    if len(x) != len(y):
        raise CounterpoiseError(f"{where}: there are {len(x)} inputs and {len(y)} targets; give as many of both.")
    return Source(where, len(y), lambda start, stop: (x[start:stop], y[start:stop]))
