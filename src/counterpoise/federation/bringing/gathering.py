"""All samples of some sources as one array, read once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.bringing.cache import Shelf
from counterpoise.federation.bringing.parts import Keys, assembled, keys_of, part_of, target_keys, target_part
from counterpoise.federation.bringing.samples import Form, check_alike, inputs_of, target_array, targets_of
from counterpoise.federation.bringing.source import Block, Head, Source
from counterpoise.federation.naming import Column, Names, unify
from counterpoise.federation.progress import bar

__all__ = ["gather"]

log = logging.getLogger(__name__)

_BLOCK = 1 << 24
"""About how many bytes of inputs are read at a time."""
_MOST_ROWS = 4096
_SHOWN = 3
"""How many sizes or classes a sentence names."""
_TWICE = 10
"""How many samples of a data set are read twice. A picture that is flipped at random looks the same every other time, so
one in a thousand data sets with random flips passes."""


def gather(
    sources: Sequence[Source], form: Form, place: Shelf, classes: Sequence[str] | None = None
) -> tuple[Any, Any, Names | None]:
    """Inputs and targets of all sources, one after the other, and the names of the classes if they have any."""
    total = sum(source.count for source in sources)
    if not total:
        raise CounterpoiseError("The data hold no samples; at least one client must have some.")
    for source in sources:
        _check_steady(source, form)
    layout = _Layout.of(next(source for source in sources if source.count), _after_heads(sources, form))
    stores = place.stores({key: ((total, *one.shape), one.dtype) for key, one in layout.example.items()})
    rows = max(1, min(_MOST_ROWS, _BLOCK // max(sum(one.nbytes for one in layout.example.values()), 1)))
    columns: list[dict[Any, np.ndarray]] = []
    done = 0
    with bar("reading", total, "samples") as show:
        for source in sources:
            targets: dict[Any, list[Block]] = {key: [] for key in layout.targets}
            for start in range(0, source.count, rows):
                stop = min(start + rows, source.count)
                x, y = source.read(start, stop)
                for key, store in stores.items():
                    place.write(store, layout.input(x, key, source.where, start))
                for key, blocks in targets.items():
                    blocks.append(target_part(y, key, layout.targets, source.where, start))
                show(done := done + stop - start)
            columns.append({key: _joined(blocks, source.where, key) for key, blocks in targets.items()})
    inputs = assembled({key: store.done() for key, store in stores.items()})
    return inputs, *_targets(columns, sources, classes)


class _Layout(NamedTuple):
    """What all samples have, as the first one shows."""

    example: dict[Any, np.ndarray]
    """The parts of its inputs."""
    forms: dict[Any, Form]
    """What pictures in each part become."""
    targets: Keys

    @classmethod
    def of(cls, source: Source, form: Form) -> _Layout:
        block, labels = source.read(0, 1)
        keys, where = keys_of(block), source.where
        example = {key: inputs_of(part_of(block, key, keys, where, 0), where, 0, form)[0] for key in keys}
        forms = {key: replace(form, colour=one.ndim == 3 and len(one) == 3) for key, one in example.items()}
        return cls(example, forms, target_keys(labels))

    def input(self, block: Any, key: Any, where: str, first: int) -> np.ndarray:
        """One part of the inputs of a block, which must be like the example; `first` numbers its first sample."""
        one = self.example[key]
        part = inputs_of(part_of(block, key, tuple(self.example), where, first), where, first, self.forms[key])
        part = _of_width(part, one.dtype)
        called = "" if key is None else f", part {key!r},"
        check_alike(part[0], one.shape, one.dtype, f"{where}: sample {first}{called}")
        _check_finite(part, f"{where}: the input of sample", first)
        return part


def _after_heads(sources: Sequence[Source], form: Form) -> Form:
    """The form of pictures after a look at the heads of all files: all have colours if one has."""
    heads = [head for source in sources if source.heads is not None for head in source.heads()]
    _check_sizes(heads, form)
    grey, clear = [head for head in heads if not head.colour], [head for head in heads if head.transparent]
    one, some = ("is", "becomes", "has"), ("are", "become", "have")
    told = []
    if 0 < len(grey) < len(heads):
        be, become, _ = one if len(grey) == 1 else some
        told += [f"{len(grey)} {be} grey ({grey[0].name} for example) and {become} RGB"]
    if clear:
        *_, have = one if len(clear) == 1 else some
        told += [f"{len(clear)} {have} transparent pixels ({clear[0].name} for example), which become opaque"]
    if told:
        log.warning("Of %d pictures, %s.", len(heads), "; ".join(told))
    return replace(form, colour=True) if any(one.colour for one in heads) else form


def _targets(
    columns: Sequence[Mapping[Any, np.ndarray]], sources: Sequence[Source], classes: Sequence[str] | None
) -> tuple[Any, Names | None]:
    """The targets of all sources, and the names of the classes if they have any. Targets in parts have no classes."""
    if None in columns[0]:
        pairs = zip(columns, sources, strict=True)
        numbers, names = unify([Column(s.where, column[None], s.class_names) for column, s in pairs], classes)
        targets = _one_column(numbers, sources)
        if names is not None and classes is None and any(source.heads for source in sources):
            _tell_empty(names, targets)
        return targets, names
    if classes is not None:
        raise CounterpoiseError("class_names are for classes, but these targets have parts. Leave class_names out.")
    return assembled({key: _one_column([column[key] for column in columns], sources) for key in columns[0]}), None


def _tell_empty(names: Names, targets: np.ndarray) -> None:
    there = {*np.unique(targets).tolist()}
    if empty := [name for number, name in enumerate(names) if number not in there]:
        some = ", ".join(empty[:_SHOWN]) + (", ..." if len(empty) > _SHOWN else "")
        log.warning(
            "%d of %d classes %s no pictures (%s), but the model has an output for each.",
            len(empty),
            len(names),
            "has" if len(empty) == 1 else "have",
            some,
        )


def _check_sizes(heads: Sequence[Head], form: Form) -> None:
    sizes = Counter(head.size for head in heads)
    if form.size is None and len(sizes) > 1:
        example = {head.size: head.name for head in heads}
        common = [
            f"{count} of {high} x {wide} pixels ({example[high, wide]} for example)"
            for (high, wide), count in sizes.most_common(_SHOWN)
        ]
        more = f", and {len(sizes) - _SHOWN} more sizes" if len(sizes) > _SHOWN else ""
        high, wide = sizes.most_common(1)[0][0]
        size = f"{high}" if high == wide else f"[{high}, {wide}]"
        raise CounterpoiseError(
            f"The pictures have {len(sizes)} different sizes (height x width): {', '.join(common)}{more}. Bring them to one, "
            f"such as resize={size}."
        )


def _joined(blocks: list[Any], where: str, key: Any) -> np.ndarray:
    """The targets of all blocks of a source, or the part `key` of them."""
    if not blocks:
        return np.empty(0, np.int64)
    whole = isinstance(blocks[0], np.ndarray | Tensor)
    values = np.concatenate([np.asarray(b) for b in blocks]) if whole else [value for b in blocks for value in b]
    made = _target(values, where, key)
    _check_finite(made, f"{where}: the target of sample", 0)
    if made.dtype.kind == "i" and made.ndim == 1 and key is None and made.min() < 0:
        raise CounterpoiseError(
            f"{where}: sample {int(made.argmin())} has the label {made.min()}, but classes are numbered from 0. Leave "
            "samples without a label out."
        )
    return made


def _of_width(part: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Fractions as wide as those of the first sample, if these have at least 32 bits; other numbers as they are."""
    if part.dtype == dtype or part.dtype.kind != "f" or dtype.kind != "f" or dtype.itemsize < 4:
        return part
    with np.errstate(over="ignore"):  # infinity is refused
        return part.astype(dtype)


def _check_finite(array: np.ndarray, what: str, first: int) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        number = first + int(np.argmin(np.isfinite(array).reshape(len(array), -1).all(1)))
        raise CounterpoiseError(f"{what} {number} holds NaN or infinity. Fill in what is missing, or leave it out.")


def _target(values: Any, where: str, key: Any) -> np.ndarray:
    if key is None:
        return targets_of(values, where)
    made = target_array(values, f"{where}, part {key!r}")
    if made.dtype.kind == "U":
        raise CounterpoiseError(f"{where}: the part {key!r} of targets is text; turn it into numbers first.")
    return made


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
        one, two = (_arrays_of(source, number, form) for _ in range(2))
        if one.keys() != two.keys() or not all(_same(one[key], two[key]) for key in one):
            raise CounterpoiseError(
                f"{source.where}: sample {number} changes each time it is read, so the data set has a random transform. "
                "Samples are read only once. Take the transform out, and augment in training: "
                "cp.Local(augment=cp.augment.flip_and_crop())."
            )


def _arrays_of(source: Source, number: int, form: Form) -> dict[Any, np.ndarray]:
    """One sample's inputs and targets, part by part."""
    (x, y), where = source.read(number, number + 1), source.where
    keys, target = keys_of(x), target_keys(y)
    found = {("inputs", key): inputs_of(part_of(x, key, keys, where, number), where, number, form) for key in keys}
    return found | {("targets", key): _target(target_part(y, key, target, where, number), where, key) for key in target}


def _same(one: np.ndarray, two: np.ndarray) -> bool:
    return one.shape == two.shape and bool(np.array_equal(one, two, equal_nan=one.dtype.kind == "f"))
