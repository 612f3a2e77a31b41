"""Data sets of Hugging Face's library ``datasets``, and the partitions of flwr-datasets, which are such data sets."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.errors import CounterpoiseError, unknown
from counterpoise.federation.bringing.mapped import from_mapped
from counterpoise.federation.bringing.parts import rows_of
from counterpoise.federation.bringing.source import INPUTS, TARGETS, Block, Columns, Later, Source
from counterpoise.federation.bringing.tables import check_names, from_columns
from counterpoise.federation.naming import Names

__all__ = ["from_disk", "from_hub", "hub_facts", "is_hub", "is_on_disk", "is_splits", "partitions"]

_IDENTITIES = ("identity", "writer_id", "client_id", "user_id", "speaker_id", "hospital_id")
_TESTS = ("test", "validation", "val")
_PLAIN = ("Value", "ClassLabel")
"""Features that hold one number or text."""
_INFO, _SPLITS = ("dataset_info.json", "state.json"), "dataset_dict.json"
"""What `save_to_disk` writes."""


def is_hub(given: Any) -> bool:
    """Whether it is a data set of ``datasets``, which need not be installed."""
    return type(given).__module__.partition(".")[0] == "datasets"


def is_splits(given: Any) -> bool:
    """Whether it is one data set in splits, training among them, rather than a data set for each client."""
    return is_hub(given) and isinstance(given, Mapping) and "train" in given


def is_on_disk(path: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return os.path.isfile(path / _SPLITS) or all(os.path.isfile(path / name) for name in _INFO)


def from_disk(path: Path, where: str) -> Any:
    """The data set that `save_to_disk` wrote."""
    try:
        from datasets import load_from_disk
    except ImportError as error:
        raise CounterpoiseError(
            f"{where}: {path} was written by Hugging Face's datasets ({error}). Install it with: pip install datasets"
        ) from None
    try:
        return load_from_disk(str(path))
    except Exception as error:  # Arrow and the library raise many types
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CounterpoiseError(f"{where}: {path} cannot be read as a data set ({said}). Save it again.") from None


def partitions(given: Any) -> list[Any] | None:
    """Every client's data set, if this deals data by flwr-datasets: a FederatedDataset, or a partitioner with data."""
    if type(given).__module__.partition(".")[0] != "flwr_datasets":
        return None
    try:
        by_split = getattr(given, "partitioners", {"train": given})
        dealing = by_split.get("train") or next(iter(by_split.values()))
        return [dealing.load_partition(number) for number in range(dealing.num_partitions)]
    except Exception as error:  # hub, network, files and its own checks raise many types
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CounterpoiseError(f"flwr-datasets cannot deal this: {said}") from error


def _is_streamed(given: Any) -> bool:
    return type(given).__name__.startswith("Iterable")


def hub_facts(given: Any) -> Any:
    """What changes if the data do: the library's own fingerprint. None if a function of the user's makes the samples."""
    if isinstance(given, Mapping) and not _is_streamed(given):
        found = {name: hub_facts(split) for name, split in given.items()}
        return None if None in found.values() else found
    if _is_streamed(given) or given.format["type"] == "custom":
        return None
    return [given._fingerprint, len(given), sorted(given.features)]


def from_hub(given: Any, where: str, columns: Columns) -> tuple[Source, Source | None]:
    """Samples of a data set, and those of its split ``test`` if it has splits."""
    if _is_streamed(given):
        raise CounterpoiseError(
            f"{where}: this data set is streamed, so its samples have no number or length. Load it without streaming=True."
        )
    if not isinstance(given, Mapping):
        return _from_split(given, where, columns), None
    if "train" not in given:
        raise CounterpoiseError(
            f"{where}: which split? It has {', '.join(given)}. Give one of them: data[{min(given)!r}]."
        )
    test = next((given[name] for name in _TESTS if name in given), None)
    return _from_split(given["train"], where, columns), None if test is None else _from_split(test, where, columns)


def _from_split(split: Any, where: str, columns: Columns) -> Source:
    kinds = {column: type(feature).__name__ for column, feature in split.features.items()}
    chosen = _choose(kinds, columns, where)
    names = _names(split, chosen.get("targets"))
    if split.format["type"] == "custom":
        return replace(from_mapped(split, where, columns), class_names=names, identities=_who(split, chosen, where))
    if _has_tokens(kinds, chosen):
        found: Columns = {what: chosen[what] for what in ("inputs", "targets") if what in chosen}
        who = _who(split, chosen, where)
        return replace(from_mapped(split, where, found), class_names=names, identities=who, steady=True)
    if "targets" not in chosen:
        raise CounterpoiseError(
            f"{where}: which column holds the targets? There are {', '.join(kinds)}. Say columns={{'targets': ...}}."
        )
    inputs = chosen.get("inputs")
    others = [column for column in kinds if column not in (chosen["targets"], chosen.get("identity"))]
    if inputs is None and others and not any(kinds[column] in _PLAIN for column in others):
        raise CounterpoiseError(
            f"{where}: which column holds the inputs? There are {', '.join(others)}. Say columns={{'inputs': ...}}."
        )
    if not isinstance(inputs, str) or kinds[inputs] in _PLAIN:
        table = {column: _whole(split, column) for column, kind in kinds.items() if kind in _PLAIN}
        return replace(from_columns(table, where, chosen, "the data set"), class_names=names)
    column = chosen["targets"]
    several = None if isinstance(column, str) else {one: _whole(split, one) for one in column}
    targets = _whole(split, column) if several is None else several
    return Source(where, len(split), _reader(split, inputs, targets), names, _who(split, chosen, where))


def _who(split: Any, chosen: Mapping[str, Any], where: str) -> np.ndarray | None:
    """Whose each sample is, if a column says so."""
    column = chosen.get("identity")
    return None if column is None else check_names(_whole(split, column), column, where)


def _has_tokens(kinds: Mapping[str, str], chosen: Mapping[str, Any]) -> bool:
    """Whether inputs are several columns of lists, as tokenisers make them."""
    inputs = chosen.get("inputs", "input_ids" if "input_ids" in kinds else ())
    several = [inputs] if inputs == "input_ids" else [] if isinstance(inputs, str) else inputs
    return any(kinds[column] not in _PLAIN for column in several)


def _reader(split: Any, inputs: str, targets: Any) -> Callable[[int, int], tuple[Block, Any]]:
    """Reads pictures one by one, and arrays in blocks."""
    feature = split.features[inputs]
    if type(feature).__name__ == "Image":
        pictures = split.with_format(None).select_columns([inputs])
        return lambda start, stop: (
            [Later(functools.partial(_picture, pictures, number, inputs)) for number in range(start, stop)],
            rows_of(targets, start, stop),
        )
    arrays = split.with_format("numpy").select_columns([inputs])
    small = _number_type(feature) == "uint8"  # the numpy format makes int64 of them, but pictures must be bytes

    def read(start: int, stop: int) -> tuple[Block, Any]:
        found = [np.asarray(value, np.uint8) if small else value for value in arrays[start:stop][inputs]]
        return found, rows_of(targets, start, stop)

    return read


def _picture(pictures: Any, number: int, column: str) -> Any:
    return pictures[number][column]


def _choose(kinds: Mapping[str, str], given: Columns, where: str) -> dict[str, Any]:
    """Which columns hold what: as given, or else by their types and names."""
    for column in (one for names in given.values() for one in ([names] if isinstance(names, str) else names)):
        if column not in kinds:
            raise unknown("column", column, kinds, f"in {where}")
    found = {
        "inputs": [c for c, kind in kinds.items() if kind == "Image" or kind.startswith("Array")]
        + [c for c in INPUTS if kinds.get(c, "Value") not in _PLAIN],
        "targets": [c for c, kind in kinds.items() if kind == "ClassLabel"] + [c for c in TARGETS if c in kinds],
        "identity": [c for c in _IDENTITIES if c in kinds],
    }
    return {what: columns[0] for what, columns in found.items() if columns} | dict(given)


def _names(split: Any, column: Any) -> Names | None:
    """The names of a column's classes."""
    names = getattr(split.features.get(column), "names", None) if isinstance(column, str) else None
    return tuple(map(str, names)) if names else None


def _whole(split: Any, column: str) -> np.ndarray:
    values = split.with_format(None)[column][:]
    numeric = _number_type(split.features[column]).startswith(("int", "uint", "float"))
    return np.asarray(values, np.float64 if numeric and None in values else None)  # in which None is NaN


def _number_type(feature: Any) -> str:
    """The number type of a column, or of the arrays or lists in it."""
    while hasattr(feature, "feature"):
        feature = feature.feature
    return str(getattr(feature, "dtype", ""))
