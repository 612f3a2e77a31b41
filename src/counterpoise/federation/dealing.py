"""Which rows each client and the server's own sets get."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.assignment import Assignment, Drawn, Table
from counterpoise.federation.features import Skew, skew_inputs, skew_test
from counterpoise.federation.naming import Names, number_texts, texts
from counterpoise.federation.partition import Partition
from counterpoise.federation.probes import make_probe
from counterpoise.federation.samples import Samples
from counterpoise.randomness import counter, purpose

__all__ = ["Array", "deal", "is_natural"]

Array = np.ndarray | Tensor
_MOST_CLIENTS = 10_000_000
"""A larger client number is taken for a mistake, because the table has a place for every client up to it."""
_MOST_CLASSES = 1_000_000
"""A larger label is taken for a mistake unless there are as many samples: the model has an output for every class."""


def deal(
    base: Samples,
    test: Samples | float | None,
    partition: Partition | Array | Sequence[Array],
    *,
    heldout: float,
    probe: int | str,
    proxy: int,
    seed: int,
    identities: Any = None,
    features: Skew | None = None,
    skewed_test: bool = False,
    own: Table | None = None,
    client_names: Names | None = None,
    class_names: Names | None = None,
) -> dict[str, Any]:
    """The fields of a federation: whose the rows of `base` are, and what the server takes before they are dealt.

    A `test` that is a number is the fraction of each client's samples that the server takes as its test set. `own` are
    test samples that some clients bring, the last rows of `base`. Such a client trains on all others that it holds.
    """
    if not isinstance(heldout, int | float) or not 0 <= heldout < 1:
        raise CounterpoiseError(f"heldout must be at least 0 and below 1, not {heldout!r}.")
    classes = _count_classes(base.labels, test.labels if isinstance(test, Samples) else None)
    if classes is not None and class_names is not None:
        classes = max(classes, len(class_names))
    free = base.labels[: len(base) - (0 if own is None else len(own.flat))]
    taken = 0 if isinstance(probe, str) else probe
    kept, probes, proxies = _reserve(free, classes, taken, proxy, seed)
    held, found = _assign(partition, free, kept, seed, identities)
    aside = torch.empty(0, dtype=torch.int64)
    if test is not None and not isinstance(test, Samples):
        held, aside = _set_aside(held, test, seed)
        test = base.rows(aside)
    train, out = held.split(heldout, seed)
    if own is not None:
        assert isinstance(held, Table)
        bring = own.offsets.diff() > 0
        train = _joined(_only(train, ~bring), _only(held, bring))
        out, held = _joined(_only(out, ~bring), own), _joined(held, own)
    seen = base if features is None else replace(base, inputs=skew_inputs(base.inputs, held, features, seed))
    held_out = base.rows(probes) if taken else None
    return {
        "base": seen,
        "train": train,
        "heldout": out,
        "test": skew_test(test, held.clients, features, seed, len(base)) if skewed_test else test,
        "probe": make_probe(probe, seen, train, classes, seed) if isinstance(probe, str) else held_out,
        "proxy": base.rows(proxies) if proxy else None,
        "classes": classes,
        "reported": probe == "means",
        "client_names": client_names or found,
        "class_names": class_names,
        "aside": len(aside),
    }


def _set_aside(held: Assignment, fraction: float, seed: int) -> tuple[Table, Tensor]:
    """The rows that clients keep, and those that the server takes: a fraction of each client's."""
    if not 0 < fraction < 1:
        raise CounterpoiseError(
            f"test={fraction!r}: as a number, test is the fraction of each client's samples that the server takes as its "
            "test set, above 0 and below 1."
        )
    if not isinstance(held, Table):
        raise CounterpoiseError("Clients that draw from a shared base leave no samples over for a test set.")
    rows = torch.unique(held.split(fraction, seed)[1].flat)
    kept = ~torch.isin(held.flat, rows)  # a sample that two clients hold is taken from both
    return Table.of(held.owners[kept], held.flat[kept], held.clients), rows


def is_natural(partition: object) -> bool:
    """Whether a recipe makes each of the data's own identities a client."""
    if isinstance(partition, str) or inspect.isfunction(partition):
        name = partition if isinstance(partition, str) else partition.__name__
        raise CounterpoiseError(
            f"partition must be a recipe, made by a call such as cp.natural() or cp.iid(clients=10), not {name!r} alone."
        )
    return isinstance(partition, Partition) and partition.column == "identity"


def _only(table: Any, clients: Tensor) -> Table:
    """The table with the rows of these clients; the others have none."""
    there = clients[table.owners]
    return Table.of(table.owners[there], table.flat[there], table.clients)


def _joined(one: Table, two: Table) -> Table:
    """Every client's rows in one table, then those in the other."""
    return Table.of(torch.cat([one.owners, two.owners]), torch.cat([one.flat, two.flat]), one.clients)


def _count_classes(*targets: Tensor | None) -> int | None:
    """The number of classes if targets are class numbers, else None."""
    present = [t for t in targets if t is not None and len(t)]
    if not present or any(t.is_floating_point() or t.ndim != 1 for t in present):
        return None
    if any(int(t.min()) < 0 for t in present):
        raise CounterpoiseError("Class numbers must not be negative; count them from 0.")
    largest, samples = max(int(t.max()) for t in present), sum(map(len, present))
    if largest >= max(_MOST_CLASSES, samples):
        raise CounterpoiseError(
            f"The label {largest} would make {largest + 1} classes of {samples} samples. Number the classes from 0 "
            "without gaps, for example with np.unique(labels, return_inverse=True)[1]."
        )
    return largest + 1


def _reserve(targets: Tensor, classes: int | None, probe: int, proxy: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows left for clients, rows of the probe set and rows of the proxy set; they do not overlap."""
    for name, count in (("probe", probe), ("proxy", proxy)):
        if type(count) is not int or count < 0:
            raise CounterpoiseError(f"{name} must be a whole number at least 0, not {count!r}.")
    order = counter(seed, purpose("reserve"), torch.arange(len(targets))).argsort(stable=True)
    probes = order[:0]
    if probe:
        if classes is None:
            raise CounterpoiseError("A probe set is drawn per class; these targets are not class numbers.")
        shuffled = targets[order]
        picks = [order[shuffled == label][:probe] for label in range(classes)]
        short = [label for label, pick in enumerate(picks) if len(pick) < probe]
        if short:
            raise CounterpoiseError(f"Class {short[0]} has fewer than {probe} samples for the probe set.")
        probes = torch.cat(picks)
        order = order[~torch.isin(order, probes)]
    if proxy > len(order):
        raise CounterpoiseError(f"A proxy set of {proxy} samples was asked for, but only {len(order)} are left.")
    return order[proxy:].sort().values, probes, order[:proxy]


def _assign(
    partition: Partition | Array | Sequence[Array],
    targets: Tensor,
    kept: Tensor,
    seed: int,
    identities: Array | Sequence[str] | None = None,
) -> tuple[Assignment, Names | None]:
    """Deal the rows in `kept`. Clients that are the data's own identities have names."""
    if not isinstance(partition, Partition):
        return _assign_by_hand(partition, targets, kept), None
    if partition.column == "row":  # it names rows, including those of the server's sets
        named = partition.assign(torch.arange(len(targets)), seed)
        assert isinstance(named, Table)
        there = torch.isin(named.flat, kept)
        return Table.of(named.owners[there], named.flat[there], named.clients), None
    natural = is_natural(partition)
    column, names = _identities(identities, len(targets)) if natural else (targets, None)
    held = partition.assign(column[kept], seed)
    if not isinstance(held, Table | Drawn):
        raise CounterpoiseError(
            "Partition: assign must return Table.of(owners, rows, clients) of counterpoise.federation.assignment, "
            f"not {type(held).__name__}."
        )
    if isinstance(held, Table):
        dealt = Table(held.offsets, kept[held.flat])
        return dealt, _names(dealt, column, names) if natural else None
    if len(kept) < len(targets):
        raise CounterpoiseError("Clients that draw from a shared base leave no samples over for a probe or proxy set.")
    return held, None


def _names(held: Table, column: Tensor, names: Names | None) -> Names | None:
    """What the data call each client: the identity of its first sample."""
    if not bool((held.offsets.diff() > 0).all()):
        return None
    first = column[held.flat[held.offsets[:-1]]].tolist()
    return tuple(str(who) if names is None else names[who] for who in first)


def _assign_by_hand(partition: Any, targets: Tensor, kept: Tensor) -> Table:
    """A client number for each sample, or a list of rows for each client."""
    if (isinstance(partition, np.ndarray | Tensor) and partition.ndim != 2) or _whole(partition):
        owners = torch.as_tensor(partition)
        if owners.ndim != 1 or len(owners) != len(targets) or owners.is_floating_point() or _outside(owners):
            raise CounterpoiseError(
                f"partition must give one client number, from 0, to each of the {len(targets)} samples."
            )
        return Table.of(owners.long()[kept], kept, int(owners.max()) + 1)
    flat, sizes = _rows(partition)
    if len(flat) and (int(flat.min()) < 0 or int(flat.max()) >= len(targets)):
        raise CounterpoiseError(f"partition names a sample outside 0 to {len(targets) - 1}.")
    owners = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    if len(kept) < len(targets):
        there = torch.isin(flat, kept)
        owners, flat = owners[there], flat[there]
    return Table.of(owners, flat, len(sizes))


def _rows(partition: Any) -> tuple[Tensor, Tensor]:
    """All clients' rows one after the other, and how many each has; a million clients take seconds."""
    try:
        table = partition.cpu().numpy() if isinstance(partition, Tensor) else partition
        if isinstance(table, np.ndarray) and table.ndim == 2 and table.size and table.dtype.kind in "iu":
            return torch.from_numpy(table.reshape(-1).astype(np.int64)), torch.full((len(table),), table.shape[1])
        rows = list(table)
        sizes = [own.numel() if isinstance(own, Tensor) else len(own) for own in rows]
        full = [own for own, size in zip(rows, sizes, strict=True) if size]
        if full and all(isinstance(own, Tensor) and own.ndim == 1 for own in full):
            full = [torch.cat(full)]  # converting each on its own takes ten seconds
        full = [np.asarray(own.cpu() if isinstance(own, Tensor) else own) for own in full]
        if not sizes or any(own.ndim != 1 or own.dtype.kind not in "iu" for own in full):
            raise TypeError
    except (TypeError, ValueError, RuntimeError):
        raise CounterpoiseError(
            "partition must be a recipe such as cp.iid(clients=10), one client number per sample, "
            f"or one list of row numbers per client; this is of type {type(partition).__name__}."
        ) from None
    flat = np.concatenate(full or [np.empty(0, np.int64)]).astype(np.int64, copy=False)
    return torch.from_numpy(flat), torch.tensor(sizes)


def _identities(identities: Any, samples: int) -> tuple[Tensor, Names | None]:
    """One number for each sample, and the names that the numbers stand for if the identities are text."""
    if identities is None:
        raise CounterpoiseError(
            "This data does not say who its samples come from; a natural partition needs one identity per sample. Name "
            "a table's column, columns={'identity': 'hospital'}; put an array identity_train into an .npz file; put pictures into a folder for each client, "
            "photos/hospital/cat/1.png; or give arrays: from_arrays(x, y, identities=...)."
        )
    found = texts(identities)
    numbers, names = (identities, None) if found is None else number_texts(found)
    try:
        column = torch.as_tensor(numbers)
    except (TypeError, ValueError, RuntimeError):  # lists of different lengths, for example
        column = torch.empty(0)
    if column.shape != (samples,) or column.is_floating_point():
        raise CounterpoiseError(f"identities must be one whole number or name for each of the {samples} samples.")
    return column, names


def _outside(owners: Tensor) -> bool:
    return not len(owners) or int(owners.min()) < 0 or int(owners.max()) >= _MOST_CLIENTS


def _whole(values: object) -> bool:
    return isinstance(values, list | tuple) and len(values) > 0 and all(type(value) is int for value in values)
