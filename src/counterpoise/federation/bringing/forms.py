"""Which form something has that holds samples, and each form as a `Source`."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from counterpoise.errors import CounterpoiseError, brief, unknown
from counterpoise.federation.bringing.paths import from_path
from counterpoise.federation.bringing.source import Block, Columns, Source
from counterpoise.federation.bringing.tables import from_frame, is_frame
from counterpoise.federation.naming import texts

__all__ = ["FORMS", "check_columns", "is_arrays", "recognise"]

log = logging.getLogger(__name__)

PARTS = ("inputs", "targets", "identity")
_INPUTS = ("image", "img", "pixel_values", "inputs", "features", "x")
_TARGETS = ("label", "labels", "target", "targets", "y")
"""Usual names of the parts of a sample, the commonest first."""
FORMS = (
    "a torch Dataset, a DataLoader, arrays (x, y) or (x, y, x_test, y_test), a table, or the path of a file or folder"
)


def recognise(given: Any, where: str, columns: Columns) -> tuple[Source, Source | None]:
    """What somebody has as a source of samples, and its test part if it has one."""
    if isinstance(given, str | os.PathLike):
        return from_path(Path(given).expanduser(), where, columns)
    if is_frame(given):
        return from_frame(given, where, columns), None
    if isinstance(given, DataLoader):
        return recognise(_inside(given, where), where, columns)
    if is_arrays(given):
        parts = [_from_arrays(given[i], given[i + 1], where) for i in range(0, len(given), 2)]
        return parts[0], parts[1] if len(parts) == 2 else None
    if isinstance(given, IterableDataset) or (isinstance(given, Dataset) and not hasattr(given, "__len__")):
        raise CounterpoiseError(
            f"{where}: {type(given).__name__} gives its samples only one after the other, without a number or length. "
            "Read it first: x, y = zip(*dataset), and give (np.stack(x), list(y))."
        )
    if isinstance(given, np.ndarray | Tensor | Mapping | list | tuple) or not hasattr(given, "__getitem__"):
        raise CounterpoiseError(f"{where} is of type {type(given).__name__}; give {FORMS}.")
    return _from_mapped(given, where, columns), None


def check_columns(columns: Columns | None) -> Columns:
    """Refuse columns that nothing asks for."""
    for what in columns or {}:
        if what not in PARTS:
            raise unknown("column", what, PARTS, "of a data set")
    return columns or {}


# ---------------------------------------------------------------- arrays


def is_arrays(given: Any) -> bool:
    """Whether it is ``(x, y)`` or ``(x, y, x_test, y_test)``, not a tuple of data sets."""
    return isinstance(given, tuple) and len(given) in (2, 4) and all(map(_is_array, given))


def _is_array(part: Any) -> bool:
    """An array, a list of samples, one target by itself (a mistake that is told), or a column or table of pandas."""
    return isinstance(part, np.ndarray | Tensor | list | int | float | str | np.generic) or hasattr(part, "to_numpy")


def _from_arrays(x: Any, y: Any, where: str) -> Source:
    found = texts(y)
    inputs, targets = (_plain(x), _plain(y) if found is None else found)
    counts = [
        None if isinstance(part, np.ndarray | Tensor) and not part.ndim else len(part) for part in (inputs, targets)
    ]
    if None in counts or counts[0] != counts[1]:
        has = ["one value" if count is None else f"{count} rows" for count in counts]
        raise CounterpoiseError(
            f"{where}: x has {has[0]} and y {has[1]}; give as many of both, one row for each sample. A list holds one data "
            "set for each client; stack single samples first, and deal them: from_arrays(x, y, partition=...)."
        )
    return Source(where, len(targets), lambda start, stop: (inputs[start:stop], targets[start:stop]))


def _plain(part: Any) -> Any:
    return part if isinstance(part, np.ndarray | Tensor | list) else np.asarray(part)


# ---------------------------------------------------------------- torch


def _inside(loader: DataLoader[Any], where: str) -> Any:
    """A loader's data set. A sampler that chooses samples is refused, because the data set has them all."""
    dataset: Any = loader.dataset
    sampler: Any = loader.sampler
    if hasattr(dataset, "__len__") and hasattr(sampler, "__len__") and len(sampler) != len(dataset):
        raise CounterpoiseError(
            f"{where}: the DataLoader's {type(sampler).__name__} chooses {len(sampler)} of {len(dataset)} samples, but of "
            "a loader only its data set counts. Give torch.utils.data.Subset(dataset, indices) in its place."
        )
    return dataset


def _from_mapped(dataset: Any, where: str, columns: Columns) -> Source:
    """Anything with a length and numbered samples."""
    try:
        count = len(dataset)
    except TypeError:
        raise CounterpoiseError(
            f"{where}: {type(dataset).__name__} has no length. Give it a method __len__, or give arrays (x, y)."
        ) from None

    def read(start: int, stop: int) -> tuple[Block, Block]:
        pairs = [_pair(_sample(dataset, number, where), number, where, columns) for number in range(start, stop)]
        return [x for x, _ in pairs], [y for _, y in pairs]

    return Source(where, count, read, steady=False)


def _sample(dataset: Any, number: int, where: str) -> Any:
    try:
        return dataset[number]
    except CounterpoiseError:
        raise
    except Exception as error:  # a user's data set may raise anything
        said = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": ")
        raise CounterpoiseError(f"{where}: sample {number} cannot be read ({said}).") from error


def _pair(sample: Any, number: int, where: str, columns: Columns) -> tuple[Any, Any]:
    """A sample's input and target."""
    if isinstance(sample, Mapping):
        return _part(sample, "inputs", _INPUTS, where, columns), _part(sample, "targets", _TARGETS, where, columns)
    if isinstance(sample, tuple | list) and len(sample) == 2:
        return sample[0], sample[1]
    found = f"{len(sample)} parts" if isinstance(sample, tuple | list) else f"of type {type(sample).__name__}"
    has = "has" if isinstance(sample, tuple | list) else "is"
    raise CounterpoiseError(
        f"{where}: sample {number} {has} {found}; a data set must give pairs (input, target), or dictionaries whose parts "
        "columns={'inputs': ..., 'targets': ...} names."
    )


def _part(sample: Mapping[str, Any], what: str, usual: Sequence[str], where: str, columns: Columns) -> Any:
    name = columns.get(what) or next((name for name in usual if name in sample), None)
    if name is None:
        raise CounterpoiseError(
            f"{where}: which part of a sample holds its {what}? It has {', '.join(map(str, sample))}. "
            f"Say columns={{'{what}': ...}}."
        )
    if not isinstance(name, str) or name not in sample:
        raise unknown(
            "part", brief(name) if not isinstance(name, str) else name, map(str, sample), f"of a sample of {where}"
        )
    return sample[name]
