"""Recognise the form in which a user gives samples, and turn it into a `Source`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from counterpoise.errors import CounterpoiseError, brief, unknown
from counterpoise.federation.bringing.facts import facts_of
from counterpoise.federation.bringing.hub import from_disk, from_hub, hub_facts, is_hub, is_on_disk
from counterpoise.federation.bringing.mapped import from_mapped, inside
from counterpoise.federation.bringing.parts import rows_of
from counterpoise.federation.bringing.paths import from_path
from counterpoise.federation.bringing.source import Columns, Source
from counterpoise.federation.bringing.tables import from_frame, is_frame
from counterpoise.federation.naming import texts
from counterpoise.federation.structure import check_dense

__all__ = ["FORMS", "check_columns", "is_arrays", "is_pair", "known_by", "recognise"]

PARTS = ("inputs", "targets", "identity")
FORMS = (
    "a torch Dataset, a DataLoader, arrays (x, y) or (x, y, x_test, y_test), a data set of Hugging Face, a table, the "
    "path of a file or folder, or a pair of these for training and test"
)


def recognise(given: Any, where: str, columns: Columns, natural: bool = False) -> tuple[Source, Source | None]:
    """What somebody has as a source of samples, and its test part if it has one.

    If clients are the data's own identities (`natural`), outer folders of pictures are identities too.
    """
    if isinstance(given, str | os.PathLike):
        if not os.fspath(given):
            raise CounterpoiseError(f"{where}: the path is empty. Give the path of a file or folder.")
        path = Path(given).expanduser()
        if is_on_disk(path):
            return from_hub(from_disk(path, where), where, columns)
        return from_path(path, where, columns, natural)
    if isinstance(given, DataLoader):
        return recognise(inside(given, where), where, columns, natural)
    if is_hub(given):
        return from_hub(given, where, columns)
    if is_frame(given):
        return from_frame(given, where, columns), None
    if is_arrays(given):
        parts = [_from_arrays(given[i], given[i + 1], where) for i in range(0, len(given), 2)]
        return parts[0], parts[1] if len(parts) == 2 else None
    if is_pair(given):
        return _train_and_test(given, where, columns, natural)
    if isinstance(given, IterableDataset) or (isinstance(given, Dataset) and not hasattr(given, "__len__")):
        raise CounterpoiseError(
            f"{where}: {type(given).__name__} gives its samples only one after the other, without a number or length. "
            "Read it first: x, y = zip(*dataset), and give (np.stack(x), list(y))."
        )
    if isinstance(given, np.ndarray | Tensor | Mapping | list | tuple | type) or not hasattr(given, "__getitem__"):
        raise CounterpoiseError(f"{where} is {_in_words(given)}; give {FORMS}.")
    return from_mapped(given, where, columns), None


def _in_words(given: Any) -> str:
    if isinstance(given, type):
        return f"the class {given.__name__}, not a data set of it"
    if not isinstance(given, list | tuple) or not given:
        return f"of type {type(given).__name__}"
    kinds = ", ".join(type(part).__name__ for part in given[:4]) + (", ..." if len(given) > 4 else "")
    return f"a {type(given).__name__} of {len(given)} ({kinds})"


def is_pair(given: Any) -> bool:
    """Whether it is a data set for training and one for test."""
    return isinstance(given, tuple) and len(given) == 2 and not is_arrays(given) and all(map(_holds_samples, given))


def _holds_samples(given: Any) -> bool:
    if isinstance(given, str | os.PathLike | DataLoader) or is_hub(given) or is_frame(given) or is_arrays(given):
        return True
    array = isinstance(given, np.ndarray | Tensor | Mapping | list | tuple)
    return not array and hasattr(given, "__getitem__") and hasattr(given, "__len__")


def _train_and_test(given: tuple[Any, Any], where: str, columns: Columns, natural: bool) -> tuple[Source, Source]:
    if all(isinstance(one, tuple) for one in given) and len({len(part) for one in given for part in one}) == 1:
        raise CounterpoiseError(
            f"{where}: this may be inputs and targets in parts, or a training and a test set. Give parts as dictionaries, "
            "and a test set as (x, y, x_test, y_test)."
        )
    (train, one), (test, two) = (recognise(part, where, columns, natural) for part in given)
    if one is not None or two is not None:
        raise CounterpoiseError(
            f"{where} is a pair of data sets for training and test, and one of them has a test part of its own. Leave that "
            "or the pair out."
        )
    return train, test


def known_by(given: Any) -> Any:
    """Plain values that change if the samples do; None if that cannot be known without reading them all."""
    if is_pair(given):
        both = [known_by(one) for one in given]
        return None if None in both else both
    if isinstance(given, DataLoader):
        return known_by(given.dataset)
    if isinstance(given, str | os.PathLike):
        path = Path(given).expanduser()
        return [str(path.absolute()), facts_of([path])] if os.path.exists(path) else None
    return hub_facts(given) if is_hub(given) else None


def check_columns(columns: Columns | None) -> Columns:
    """Refuse keys that nothing asks for, and values that are no names."""
    if not isinstance(columns, Mapping | None):
        raise CounterpoiseError(
            f"columns must be a dictionary such as {{'inputs': ['age', 'pulse'], 'targets': 'state'}}, not {brief(columns)}."
        )
    for what, names in (columns or {}).items():
        if what not in PARTS:
            raise unknown("column", what, PARTS, "of a data set")
        several = isinstance(names, list | tuple) and len(names) > 0
        if not all(isinstance(name, str) for name in (names if several else [names])):
            raise CounterpoiseError(
                f"columns: {what!r} must be the name of a column, or a list of names, not {brief(names)}."
            )
    return columns or {}


# ---------------------------------------------------------------- arrays


def is_arrays(given: Any) -> bool:
    """Whether it is ``(x, y)`` or ``(x, y, x_test, y_test)``, each in one piece or in parts, not a tuple of data sets."""
    if not isinstance(given, tuple) or len(given) not in (2, 4) or all(isinstance(part, tuple) for part in given):
        return False
    if len(given) == 2 and all(map(is_frame, given)) and list(given[0].columns) == list(given[1].columns):
        return False  # tables for training and test
    return all(_is_array(part) or _has_parts(part) for part in given)


def _has_parts(given: Any) -> bool:
    """A dictionary or a tuple of arrays."""
    if isinstance(given, tuple):
        return len(given) > 0 and all(isinstance(part, np.ndarray | Tensor) for part in given)
    return isinstance(given, Mapping) and len(given) > 0 and all(map(_is_array, given.values()))


def _is_array(part: Any) -> bool:
    """An array, a list of samples, a column or table of pandas, or one target by itself, which is refused later."""
    return isinstance(part, np.ndarray | Tensor | list | int | float | np.generic) or hasattr(part, "to_numpy")


def _from_arrays(x: Any, y: Any, where: str) -> Source:
    inputs, targets = _blocks(x, f"{where}: x"), _blocks(y, f"{where}: y")
    for name, part in inputs.items():
        for other in targets.values():
            _check_rows(part, other, where, "x" if name is None else f"x[{name!r}]")
    inputs, targets = inputs.get(None, inputs), targets.get(None, targets)
    count = len(next(iter(targets.values())) if isinstance(targets, dict) else targets)
    return Source(where, count, lambda start, stop: (rows_of(inputs, start, stop), rows_of(targets, start, stop)))


def _blocks(given: Any, what: str) -> dict[Any, Any]:
    """Arrays by their names, by their places in a tuple, or one without a name."""
    if isinstance(given, tuple):
        given = dict(enumerate(given))
    named = given if isinstance(given, Mapping) else {None: given}
    for part in named.values():
        check_dense(part, what)
    found = {key: texts(named[key]) for key in named}
    return {key: _plain(named[key]) if found[key] is None else found[key] for key in named}


def _check_rows(inputs: Any, targets: Any, where: str, called: str) -> None:
    counts = [
        None if isinstance(part, np.ndarray | Tensor) and not part.ndim else len(part) for part in (inputs, targets)
    ]
    if None in counts or counts[0] != counts[1]:
        has = ["one value" if count is None else f"{count} rows" for count in counts]
        raise CounterpoiseError(
            f"{where}: {called} has {has[0]} and y {has[1]}; give as many of both, one row for each sample. "
            "A list holds one data set for each client; stack single samples first, and deal them: from_arrays(x, y, partition=...)."
        )


def _plain(part: Any) -> Any:
    return part if isinstance(part, np.ndarray | Tensor | list) else np.asarray(part)
