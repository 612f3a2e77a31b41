"""Text in place of numbers: labels and identities become numbers, and their names are kept in order."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from counterpoise.errors import CounterpoiseError, brief

__all__ = ["Column", "Names", "number_texts", "sorted_names", "texts", "unify"]

log = logging.getLogger(__name__)

Names = tuple[str, ...]
_FEW = 20
"""Up to this many different texts always count as labels; more must have two samples each on average."""


def texts(values: object) -> np.ndarray | None:
    """Values as an array of texts, or None if they are something else."""
    if isinstance(values, Tensor) or not (isinstance(values, list | tuple) or hasattr(values, "dtype")):
        return None
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError):
        return None
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8", "replace")
    if array.dtype.kind in "OT" and array.ndim == 1 and len(array) and all(isinstance(v, str) for v in array):
        array = array.astype(str)
    return array if array.dtype.kind == "U" and array.ndim == 1 else None


def sorted_names(found: Iterable[str]) -> Names:
    """Different names in order: by the alphabet, or by size if all of them are whole numbers.

    >>> sorted_names(["dog", "cat", "dog"]), sorted_names(["10", "9"])
    (('cat', 'dog'), ('9', '10'))
    """
    names = {str(name) for name in found}
    if all(name.isdecimal() and len(name) < 20 for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def number_texts(values: np.ndarray) -> tuple[np.ndarray, Names]:
    """The number of each text, and the names that the numbers stand for."""
    found, codes = np.unique(values, return_inverse=True)
    names = sorted_names(found.tolist())
    place = {name: number for number, name in enumerate(names)}
    return np.array([place[name] for name in found.tolist()], np.int64)[codes.reshape(-1)], names


class Column(NamedTuple):
    """Targets of one part of the data. Those with names are class numbers."""

    where: str
    values: Any
    names: Names | None = None


def unify(columns: Sequence[Column], fixed: Sequence[str] | None = None) -> tuple[list[Any], Names | None]:
    """The targets of all parts with one numbering of classes, and the names of the classes if they have any.

    Text becomes numbers in the order of the names. Parts whose classes have names keep their numbers if every list of
    names is the beginning of the longest one; otherwise classes are numbered anew, by name. `fixed` are the names of all
    classes in the order that the user wants; numbers without names are places in it.
    """
    named = [_named(column) for column in columns]
    if fixed is not None:
        names = _checked(fixed)
        return [_renumbered(_placed(column, names), names) for column in named], names
    lists = [column.names for column in named if column.names is not None]
    if not lists:
        return [column.values for column in named], None
    longest = max(lists, key=len)
    together = longest if all(names == longest[: len(names)] for names in lists) else sorted_names(sum(lists, ()))
    _tell_alike(together)
    by_text = [column.where for column, made in zip(columns, named, strict=True) if made.names and not column.names]
    for column in named:
        if column.names is None and len(column.values) and (by_text or together != longest):
            other = by_text[0] if by_text else next(c.where for c in named if c.names is not None)
            raise CounterpoiseError(
                f"{column.where}: labels are numbers, but those of {other} are names ({_some(together)}). "
                "Give both as names or both as numbers."
            )
    return [_renumbered(column, together) for column in named], together


def _tell_alike(names: Names) -> None:
    """Warn of classes whose names differ only in case, spaces or underscores. Single letters are classes of their own."""
    seen: dict[str, str] = {}
    for name in names:
        first = seen.setdefault("".join(name.replace("_", " ").split()).casefold(), name)
        if first != name and len(name) > 1:
            log.warning("%r and %r are two classes, whose names are almost the same. Should they be one?", first, name)


def _checked(given: Sequence[str]) -> Names:
    names = () if isinstance(given, str) else tuple(map(str, given))
    if not names or len({*names}) < len(names):
        raise CounterpoiseError(f"class_names must be a list of different names, not {brief(given)}.")
    return names


def _placed(column: Column, names: Names) -> Column:
    """A column whose names are among those given, or whose numbers are places among them."""
    if strange := {*(column.names or ())} - {*names}:
        raise CounterpoiseError(
            f"{column.where}: the label {brief(min(strange))} is not among class_names ({_some(names)}). Add it, or leave "
            "out its samples."
        )
    if np.asarray(column.values).dtype.kind not in "iub":
        raise CounterpoiseError(f"{column.where}: class_names are for classes, but these targets are fractions.")
    return column if column.names is not None else column._replace(names=names)


def _named(column: Column) -> Column:
    """Text as numbers with names, and only whole numbers with names; other columns as they are."""
    found = texts(column.values)
    if found is None:
        whole = column.names is None or np.asarray(column.values).dtype.kind in "iub"
        return column if whole else column._replace(names=None)
    numbers, names = number_texts(found)
    if len(names) > _FEW and 2 * len(names) > len(found):
        raise CounterpoiseError(
            f"{column.where}: {len(found)} samples have {len(names)} different labels ({_some(names)}), so these are no "
            "class labels. Name the right targets, or turn the text into numbers first."
        )
    return Column(column.where, numbers, names)


def _renumbered(column: Column, names: Names) -> Any:
    if column.names is None:
        return column.values
    numbers = np.asarray(column.values)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(column.names):
        wrong = numbers.min() if numbers.min() < 0 else numbers.max()
        raise CounterpoiseError(
            f"{column.where}: the label {wrong} has no name; the {len(column.names)} classes ({_some(column.names)}) are "
            "numbered from 0. Leave samples without a label out."
        )
    if column.names == names[: len(column.names)]:
        return column.values
    place = {name: number for number, name in enumerate(names)}
    return np.array([place[name] for name in column.names], np.int64)[numbers]


def _some(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(name[:40] for name in names[:most]) + (", ..." if len(names) > most else "")
