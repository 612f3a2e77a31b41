"""All samples of some sources as one array, read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.bringing.cache import Shelf
from counterpoise.federation.bringing.parts import assembled, keys_of, part_of
from counterpoise.federation.bringing.samples import Form, check_alike, inputs_of, targets_of
from counterpoise.federation.bringing.source import Block, Source
from counterpoise.federation.naming import Column, Names, unify
from counterpoise.federation.progress import bar

__all__ = ["gather"]

_BLOCK = 1 << 24
"""About how many bytes of inputs are read at a time."""
_MOST_ROWS = 4096
_TWICE = 10
"""How many samples of a data set are read twice. Half of the pictures that are flipped at random look as before, so one
in a thousand such data sets passes."""


def gather(
    sources: Sequence[Source], form: Form, place: Shelf, classes: Sequence[str] | None = None
) -> tuple[Any, np.ndarray, Names | None]:
    """Inputs and targets of all sources, one after the other, and the names of the classes if they have any."""
    total = sum(source.count for source in sources)
    if not total:
        raise CounterpoiseError("The data hold no samples; at least one client must have some.")
    for source in sources:
        _check_steady(source, form)
    heads = [source.heads() for source in sources if source.heads is not None]
    _check_sizes({size: name for one in heads for size, name in one.sizes.items()}, form)
    if any(one.colour for one in heads):
        form = replace(form, colour=True)
    first = next(source for source in sources if source.count)
    block = first.read(0, 1)[0]
    keys = keys_of(block)
    example = {key: inputs_of(part_of(block, key, keys, first.where, 0), first.where, 0, form)[0] for key in keys}
    forms = {key: replace(form, colour=one.ndim == 3 and len(one) == 3) for key, one in example.items()}
    stores = {key: place.store((total, *one.shape), one.dtype, whole=key is None) for key, one in example.items()}
    rows = max(1, min(_MOST_ROWS, _BLOCK // max(sum(one.nbytes for one in example.values()), 1)))
    columns: list[Column] = []
    done = 0
    with bar("reading", total, "samples") as show:
        for source in sources:
            targets: list[Block] = []
            for start in range(0, source.count, rows):
                x, y = source.read(start, min(start + rows, source.count))
                for key, one in example.items():
                    part = inputs_of(part_of(x, key, keys, source.where, start), source.where, start, forms[key])
                    called = "" if key is None else f", part {key!r},"
                    check_alike(part[0], one.shape, one.dtype, f"{source.where}: sample {start}{called}")
                    place.write(stores[key], part)
                targets.append(y)
                show(done := done + len(part))
            columns.append(Column(source.where, _joined(targets, source.where), source.class_names))
    numbers, names = unify(columns, classes)
    return assembled({key: store.done() for key, store in stores.items()}), _one_column(numbers, sources), names


def _check_sizes(sizes: Mapping[tuple[int, int], str], form: Form) -> None:
    if form.size is None and len(sizes) > 1:
        low, high = min(sizes), max(sizes)
        raise CounterpoiseError(
            f"The pictures have {len(sizes)} different sizes: {sizes[low]} is {low[0]} pixels high and {low[1]} wide, "
            f"{sizes[high]} is {high[0]} high and {high[1]} wide. Bring them to one with resize=(height, width)."
        )


def _joined(blocks: list[Any], where: str) -> np.ndarray:
    """The targets of all blocks of a source."""
    if not blocks:
        return np.empty(0, np.int64)
    if isinstance(blocks[0], np.ndarray | Tensor):
        return targets_of(np.concatenate([np.asarray(block) for block in blocks]), where)
    return targets_of([value for block in blocks for value in block], where)


def _one_column(numbers: Sequence[np.ndarray], sources: Sequence[Source]) -> np.ndarray:
    """The targets of all sources in one array."""
    full = [(column, source.where) for column, source in zip(numbers, sources, strict=True) if len(column)]
    first, whose = full[0]
    for column, where in full[1:]:
        if column.shape[1:] != first.shape[1:] or (column.dtype.kind == "f") != (first.dtype.kind == "f"):
            raise CounterpoiseError(
                f"{where}: targets of type {column.dtype} and shape {column.shape[1:]} do not go with those of {whose}, of "
                f"type {first.dtype} and shape {first.shape[1:]}. Give all the same."
            )
    return np.concatenate([column for column, _ in full])


def _check_steady(source: Source, form: Form) -> None:
    """Read some samples twice, and refuse data that change."""
    if source.steady:
        return
    for number in sorted({source.count * i // _TWICE for i in range(_TWICE)} if source.count else ()):
        (one, y), (two, z) = (source.read(number, number + 1) for _ in range(2))
        keys = keys_of(one)
        pairs = ([part_of(x, key, keys, source.where, number) for x in (one, two)] for key in keys)
        same = all(_same(*(inputs_of(x, source.where, number, form) for x in pair)) for pair in pairs)
        if not (same and _same(*(targets_of(list(t), source.where) for t in (y, z)))):
            raise CounterpoiseError(
                f"{source.where}: sample {number} changes each time it is read, so the data set has a random transform. "
                "Samples are read only once. Take the transform out, and augment in training: "
                "cp.Local(augment=cp.augment.flip_and_crop())."
            )


def _same(one: np.ndarray, two: np.ndarray) -> bool:
    return one.shape == two.shape and bool(np.array_equal(one, two, equal_nan=one.dtype.kind == "f"))
