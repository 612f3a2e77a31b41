"""Which form something has that holds samples, and each form as a `Source`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from counterpoise.errors import CounterpoiseError, unknown
from counterpoise.federation.bringing.facts import facts_of
from counterpoise.federation.bringing.hub import from_disk, from_hub, hub_facts, is_hub, is_on_disk
from counterpoise.federation.bringing.mapped import from_mapped, inside
from counterpoise.federation.bringing.paths import from_path
from counterpoise.federation.bringing.source import Columns, Source
from counterpoise.federation.bringing.tables import from_frame, is_frame
from counterpoise.federation.naming import texts

__all__ = ["FORMS", "check_columns", "is_arrays", "known_by", "recognise"]

PARTS = ("inputs", "targets", "identity")
FORMS = (
    "a torch Dataset, a DataLoader, arrays (x, y) or (x, y, x_test, y_test), a data set of Hugging Face, a table, or the "
    "path of a file or folder"
)


def recognise(given: Any, where: str, columns: Columns) -> tuple[Source, Source | None]:
    """What somebody has as a source of samples, and its test part if it has one."""
    if isinstance(given, str | os.PathLike):
        path = Path(given).expanduser()
        return from_hub(from_disk(path, where), where, columns) if is_on_disk(path) else from_path(path, where, columns)
    if isinstance(given, DataLoader):
        return recognise(inside(given, where), where, columns)
    if is_hub(given):
        return from_hub(given, where, columns)
    if is_frame(given):
        return from_frame(given, where, columns), None
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
    return from_mapped(given, where, columns), None


def known_by(given: Any) -> Any:
    """Plain values that change if the samples do; None if that cannot be known without reading them all."""
    if isinstance(given, DataLoader):
        return known_by(given.dataset)
    if isinstance(given, str | os.PathLike):
        path = Path(given).expanduser()
        return [str(path.absolute()), facts_of([path])] if os.path.exists(path) else None
    return hub_facts(given) if is_hub(given) else None


def check_columns(columns: Columns | None) -> Columns:
    """Refuse columns that nothing asks for."""
    for what in columns or {}:
        if what not in PARTS:
            raise unknown("column", what, PARTS, "of a data set")
    return columns or {}


# ---------------------------------------------------------------- arrays


def is_arrays(given: Any) -> bool:
    """Whether it is ``(x, y)`` or ``(x, y, x_test, y_test)``, not a tuple of data sets; x may be a dictionary."""
    if not isinstance(given, tuple) or len(given) not in (2, 4):
        return False
    return all(_is_array(part) or (i % 2 == 0 and _is_named(part)) for i, part in enumerate(given))


def _is_named(part: Any) -> bool:
    return isinstance(part, Mapping) and len(part) > 0 and all(map(_is_array, part.values()))


def _is_array(part: Any) -> bool:
    """An array, a list of samples, one target by itself (a mistake that is told), or a column or table of pandas."""
    return isinstance(part, np.ndarray | Tensor | list | int | float | np.generic) or hasattr(part, "to_numpy")


def _from_arrays(x: Any, y: Any, where: str) -> Source:
    found = texts(y)
    targets = _plain(y) if found is None else found
    if isinstance(x, Mapping):
        inputs = {name: _plain(x[name]) for name in sorted(x)}
        for name, part in inputs.items():
            _check_rows(part, targets, where, f"x[{name!r}]")
        return Source(where, len(targets), lambda start, stop: (_rows(inputs, start, stop), targets[start:stop]))
    inputs = _plain(x)
    _check_rows(inputs, targets, where, "x")
    return Source(where, len(targets), lambda start, stop: (inputs[start:stop], targets[start:stop]))


def _rows(parts: Mapping[str, Any], start: int, stop: int) -> dict[str, Any]:
    return {name: part[start:stop] for name, part in parts.items()}


def _check_rows(inputs: Any, targets: Any, where: str, called: str) -> None:
    counts = [
        None if isinstance(part, np.ndarray | Tensor) and not part.ndim else len(part) for part in (inputs, targets)
    ]
    if None in counts or counts[0] != counts[1]:
        has = ["one value" if count is None else f"{count} rows" for count in counts]
        raise CounterpoiseError(
            f"{where}: {called} has {has[0]} and y {has[1]}; give as many of both, one row for each sample. A list holds one data "
            "set for each client; stack single samples first, and deal them: from_arrays(x, y, partition=...)."
        )


def _plain(part: Any) -> Any:
    return part if isinstance(part, np.ndarray | Tensor | list) else np.asarray(part)
