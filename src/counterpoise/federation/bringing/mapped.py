"""Torch's data sets and loaders, and whatever else has a length and numbered samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import DataLoader

from counterpoise.errors import CounterpoiseError, brief, unknown
from counterpoise.federation.bringing.parts import TOKENS
from counterpoise.federation.bringing.source import INPUTS, TARGETS, Block, Columns, Source

__all__ = ["from_mapped", "inside"]


def inside(loader: DataLoader[Any], where: str) -> Any:
    """A loader's data set. A sampler that chooses or repeats samples is refused, because the data set has each once."""
    dataset: Any = loader.dataset
    sampler: Any = loader.sampler
    sized = hasattr(dataset, "__len__") and hasattr(sampler, "__len__")
    repeats = getattr(sampler, "replacement", False)
    if sized and (len(sampler) != len(dataset) or repeats):
        again = ", some more than once" if repeats else ""
        raise CounterpoiseError(
            f"{where}: the DataLoader's {type(sampler).__name__} chooses {len(sampler)} of {len(dataset)} samples{again}, "
            "but of a loader only its data set counts. Give the data set, or torch.utils.data.Subset(dataset, indices)."
        )
    return dataset


def from_mapped(dataset: Any, where: str, columns: Columns) -> Source:
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
        raise CounterpoiseError(
            f"{where}: sample {number} cannot be read ({said}). Try dataset[{number}], and mend the data set."
        ) from error


def _pair(sample: Any, number: int, where: str, columns: Columns) -> tuple[Any, Any]:
    """A sample's input and target."""
    if isinstance(sample, Mapping):
        tokens = "inputs" not in columns and "input_ids" in sample
        columns = {**columns, "inputs": [name for name in TOKENS if name in sample]} if tokens else columns
        return _part(sample, "inputs", INPUTS, where, columns), _part(sample, "targets", TARGETS, where, columns)
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
    several = [name] if isinstance(name, str) else list(name)
    for one in several:
        if not isinstance(one, str) or one not in sample:
            raise unknown(
                "part", one if isinstance(one, str) else brief(one), map(str, sample), f"of a sample of {where}"
            )
    return sample[name] if isinstance(name, str) else {one: sample[one] for one in several}
