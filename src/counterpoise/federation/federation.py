"""A federation: who holds what, and what the server holds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from counterpoise.errors import CounterpoiseError, brief, takes_only_its_options
from counterpoise.federation.assignment import Assignment, Drawn, Elsewhere, Table
from counterpoise.federation.features import Skew, skew_inputs
from counterpoise.federation.partition import Partition
from counterpoise.federation.probes import make_probe
from counterpoise.federation.samples import Samples
from counterpoise.flat import raw_bytes
from counterpoise.randomness import check_seed, counter, purpose

__all__ = ["Federation"]

Array = np.ndarray | Tensor
_MOST_CLIENTS = 10_000_000
"""A larger client number is taken for a mistake, because the table has a place for every client up to it."""
_MOST_CLASSES = 1_000_000
"""A larger label is taken for a mistake unless there are as many samples: the model has an output for every class."""


@takes_only_its_options()
@dataclass(frozen=True)
class Federation:
    """Clients' data as rows of shared arrays, and the server's own sets, which no client holds."""

    base: Samples
    """The arrays that clients' rows point into."""
    train: Assignment
    heldout: Assignment
    """The part of each client's data that it does not train on, to measure its own accuracy."""
    test: Samples | None = None
    probe: Samples | None = None
    """A few inputs per class on the server (FedA4): samples, or made ones (`counterpoise.federation.probes`)."""
    proxy: Samples | None = None
    """Public samples on which the server can train (FedDua)."""
    classes: int | None = None
    source: dict[str, Any] | None = field(default=None, compare=False)
    """How to load it again, if it came from `counterpoise.load`."""
    reported: bool = field(default=False, compare=False)
    """Whether the probe set was made from what clients report."""

    def __post_init__(self) -> None:
        if not isinstance(self.base, Samples):
            raise CounterpoiseError(
                f"Federation: base must be Samples, not {brief(self.base)}. For arrays use Federation.from_arrays or "
                "Federation.from_clients, for a named data set cp.load."
            )

    @property
    def clients(self) -> int:
        return self.train.clients

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.base.inputs.shape[1:])

    def __repr__(self) -> str:
        sets = [f"{name} {len(s)}" for name in ("test", "probe", "proxy") if (s := getattr(self, name)) is not None]
        return (
            f"Federation({self.clients} clients, samples of shape {self.shape}, {', '.join(sets) or 'no server sets'})"
        )

    @cached_property
    def fingerprint(self) -> str:
        """A digest of every sample and who holds it, by which a resumed run recognises its data."""
        digest = hashlib.sha256()
        for samples in (self.base, self.test, self.probe, self.proxy):
            if samples is None:
                continue
            for value in (samples.inputs, samples.targets, samples.scale, samples.shift):
                tensor = torch.as_tensor(value)
                digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(raw_bytes(tensor))
        digest.update(f"{self.classes} classes".encode())
        for held in (self.train, self.heldout):
            if isinstance(held, Table):
                digest.update(held.offsets.numpy().tobytes() + held.flat.numpy().tobytes())
            else:
                digest.update(repr(held).encode())
        return digest.hexdigest()[:16]

    def to(self, device: torch.device | str) -> Federation:
        """The same federation with its samples on a device."""
        moved = {
            name: None if (samples := getattr(self, name)) is None else samples.to(device)
            for name in ("base", "test", "probe", "proxy")
        }
        return replace(self, **moved)  # type: ignore[arg-type]

    def only(self, client: int) -> Federation:
        """One client's data as a federation of its own, as a node of a deployment gets it.

        >>> fed = Federation.from_arrays(np.zeros((6, 2), "f"), np.arange(6) % 2, partition=[[0, 1, 2], [3, 4, 5]])
        >>> fed.only(1).clients, len(fed.only(1).base)
        (1, 3)
        """
        if type(client) is not int or not 0 <= client < self.clients:
            raise CounterpoiseError(f"There is no client {client}; they are numbered from 0 to {self.clients - 1}.")
        ids = torch.tensor([client])
        held = [part.rows(ids)[0, : int(part.sizes(ids))] for part in (self.train, self.heldout)]
        places = torch.split(torch.arange(sum(map(len, held))), [len(rows) for rows in held])
        train, heldout = (Table.of(torch.zeros_like(rows), rows, 1) for rows in places)
        return Federation(self.base.rows(torch.cat(held)), train, heldout, classes=self.classes)

    def on_server(self) -> Federation:
        """What the server of a deployment holds: its own sets, the number of clients, and none of their samples."""
        own = next((s for s in (self.test, self.proxy, self.probe) if s is not None), None)
        if own is None:
            raise CounterpoiseError(
                "The server of a deployment needs samples of its own to try the model on: a test, probe or proxy set."
            )
        if self.reported:
            raise CounterpoiseError(
                "A probe set of class means is made from what clients report, but a deployment has no message for "
                "that. Give its server a probe set of samples (probe=1) or of noise (probe='noise')."
            )
        nobody = torch.zeros(self.clients + 1, dtype=torch.int64)
        return replace(
            self,
            base=own.rows(torch.arange(min(2, len(own)))),
            train=Elsewhere(self.clients),
            heldout=Table(nobody, nobody[:0]),
            source=None,
        )

    @classmethod
    @takes_only_its_options()
    def from_arrays(
        cls,
        inputs: Array,
        targets: Array,
        *,
        partition: Partition | Array | Sequence[Array],
        test: tuple[Array, Array] | None = None,
        heldout: float = 0.2,
        probe: int | str = 0,
        proxy: int = 0,
        seed: int = 0,
        scale: Tensor | float = 1.0 / 255,
        shift: Tensor | float = 0.0,
        identities: Array | None = None,
        features: Skew | None = None,
    ) -> Federation:
        """A federation from your own arrays.

        `partition` is a recipe (``cp.dirichlet(0.5, clients=100)``), one client number per sample, or the
        rows of each client, as a list of arrays or a table. `heldout` is the fraction of each client's data
        kept to measure its own accuracy. The server takes `probe` samples per class and `proxy` samples
        before the rest is dealt. A `probe` of ``"noise"``, or of ``"means"`` (the class means that clients
        report), takes no samples. Byte inputs become ``inputs * scale + shift`` in a batch. `identities`
        says who each sample comes from, for ``cp.natural()``; `features` makes clients see pictures
        differently (``cp.rotation(45)``).

        >>> import numpy as np
        >>> fed = Federation.from_arrays(np.zeros((6, 2), "f"), np.arange(6) % 2, partition=[[0, 1, 2], [3, 4, 5]])
        >>> fed.clients, fed.train.sizes(torch.tensor([0, 1])).tolist()
        (2, [2, 2])
        """
        check_seed(seed)
        base = Samples.of(inputs, targets, scale, shift)
        if not isinstance(heldout, int | float) or not 0 <= heldout < 1:
            raise CounterpoiseError(f"heldout must be at least 0 and below 1, not {heldout!r}.")
        tests = None
        if test is not None:
            tests = Samples.of(*_pair(test, "test"), scale, shift, where="the test set")
            if tests.inputs.shape[1:] != base.inputs.shape[1:]:
                raise CounterpoiseError(
                    f"The test set's samples have shape {tuple(tests.inputs.shape[1:])}, "
                    f"but the clients' have shape {tuple(base.inputs.shape[1:])}."
                )
        classes = _classes(base.targets, None if tests is None else tests.targets)
        taken = 0 if isinstance(probe, str) else probe
        kept, probes, proxies = _reserve(base.targets, classes, taken, proxy, seed)
        held = _assign(partition, base.targets, kept, seed, identities)
        train, out = held.split(heldout, seed)
        seen = base if features is None else replace(base, inputs=skew_inputs(base.inputs, held, features, seed))
        held_out = base.rows(probes) if taken else None
        return cls(
            seen,
            train,
            out,
            tests,
            make_probe(probe, seen, train, classes, seed) if isinstance(probe, str) else held_out,
            base.rows(proxies) if proxy else None,
            classes,
            reported=probe == "means",
        )

    @classmethod
    @takes_only_its_options()
    def from_clients(cls, clients: Sequence[tuple[Array, Array]], **settings: Any) -> Federation:
        """A federation from one ``(inputs, targets)`` pair per client; settings as in `from_arrays`."""
        if isinstance(clients, Dataset):
            raise CounterpoiseError(
                "clients must be a list of pairs of inputs and targets, not one torch Dataset. Stack its samples and "
                "deal them with a recipe: Federation.from_arrays(x, y, partition=cp.iid(clients=10))."
            )
        if isinstance(clients, int | float | None):
            raise CounterpoiseError(f"clients must be a list of pairs of inputs and targets, not {brief(clients)}.")
        if not len(clients := list(clients)):
            raise CounterpoiseError("A federation needs at least one client.")
        if "partition" in settings:
            raise CounterpoiseError("from_clients takes no partition: each client keeps the samples it was given.")
        each = [Samples.of(*_pair(pair, f"client {i}"), where=f"client {i}") for i, pair in enumerate(clients)]
        shapes = {tuple(s.inputs.shape[1:]) for s in each}
        if len(shapes) > 1:
            raise CounterpoiseError(f"Clients' samples differ in shape: {sorted(shapes)}.")
        types = {s.inputs.dtype for s in each}
        if len(types) > 1:
            raise CounterpoiseError(f"Clients' inputs differ in type: {sorted(map(str, types))}.")
        inputs, targets = torch.cat([s.inputs for s in each]), torch.cat([s.targets for s in each])
        rows = torch.split(torch.arange(len(targets)), [len(s) for s in each])
        return cls.from_arrays(inputs, targets, partition=rows, **settings)


def _pair(given: Any, whose: str) -> tuple[Any, Any]:
    """Inputs and targets."""
    if isinstance(given, Dataset):
        return given, given  # the check of arrays says what to do
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise CounterpoiseError(
            f"{whose} must be a pair of inputs and targets, (x, y); this is of type {type(given).__name__}."
        )
    return given[0], given[1]


def _classes(*targets: Tensor | None) -> int | None:
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
    identities: Array | None = None,
) -> Assignment:
    if isinstance(partition, Partition):
        if partition.column == "row":  # it names rows, including those of the server's sets
            named = partition.assign(torch.arange(len(targets)), seed)
            assert isinstance(named, Table)
            there = torch.isin(named.flat, kept)
            return Table.of(named.owners[there], named.flat[there], named.clients)
        column = targets if partition.column == "label" else _identities(identities, len(targets))
        held = partition.assign(column[kept], seed)
        if not isinstance(held, Table | Drawn):
            raise CounterpoiseError(
                "Partition: assign must return Table.of(owners, rows, clients) of counterpoise.federation.assignment, "
                f"not {type(held).__name__}."
            )
        if isinstance(held, Table):
            return Table(held.offsets, kept[held.flat])
        if len(kept) < len(targets):
            raise CounterpoiseError(
                "Clients that draw from a shared base leave no samples over for a probe or proxy set."
            )
        return held
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


def _identities(identities: Array | None, samples: int) -> Tensor:
    if identities is None:
        raise CounterpoiseError(
            "This data does not say who its samples come from; a natural partition needs one identity per sample."
        )
    try:
        column = torch.as_tensor(identities)
    except (TypeError, ValueError, RuntimeError):  # texts, for example
        column = torch.empty(0)
    if column.shape != (samples,) or column.is_floating_point():
        raise CounterpoiseError(f"identities must be one whole number for each of the {samples} samples.")
    return column


def _outside(owners: Tensor) -> bool:
    return not len(owners) or int(owners.min()) < 0 or int(owners.max()) >= _MOST_CLIENTS


def _whole(values: object) -> bool:
    return isinstance(values, list | tuple) and len(values) > 0 and all(type(value) is int for value in values)
