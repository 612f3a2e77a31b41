"""How samples are dealt to clients.

A partition is a recipe: `assign(labels, seed)` gives the same `Assignment` for the same labels and
seed, or says in a sentence why it cannot be made. Here are the recipe and those that look at no
label; `labels`, `quantities`, `given` and `flower` have the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.assignment import Assignment, Drawn, Table
from counterpoise.randomness import integer, purpose
from counterpoise.registry import Option, Registry, Spec

__all__ = [
    "PARTITIONS",
    "Clients",
    "Minimum",
    "Partition",
    "class_numbers",
    "draws",
    "generator_of",
    "iid",
    "mixed",
    "need",
    "top_up",
]


@dataclass(frozen=True)
class Partition:
    """A recipe that deals samples to `clients` clients; None: as many as the data has identities."""

    clients: int | None
    assign: Callable[[Tensor, int], Assignment]
    column: Literal["label", "identity", "row"] = "label"
    """What of each sample `assign` is given: its target, whose it is, or just its number.

    Targets may be anything; a recipe that deals by label asks `class_numbers` of them."""
    spec: Spec = field(default_factory=Spec)


PARTITIONS: Registry[Partition] = Registry("partition")
Clients = Annotated[int, Option("number of clients", low=1)]
Minimum = Annotated[int, Option("samples every client has at least; the largest clients give them up", low=0)]


def generator_of(seed: int, what: str) -> np.random.Generator:
    """NumPy's generator for one purpose."""
    return np.random.Generator(np.random.Philox(integer(seed, purpose(what))))


def need(samples: int, least: int, why: str) -> None:
    """Refuse what too few samples cannot give."""
    if samples < least:
        raise CounterpoiseError(
            f"{why}: that needs at least {least} samples, and there are {samples}. Use fewer clients."
        )


_FEW_LABELS = 20
"""Different targets that are labels even if they are few samples each; more must be shared by two samples on average."""


def class_numbers(targets: Tensor, what: str) -> Tensor:
    """Targets as labels to deal by: whole numbers, shared by several samples. Refuse those of a regression."""
    different = 0 if targets.ndim != 1 else len(np.unique(targets.numpy()))
    if targets.ndim != 1:
        why = f"each is an array of shape {tuple(targets.shape[1:])}"
    elif targets.is_floating_point() and not torch.equal(targets, targets.round()):
        why = f"they are fractions such as {float(targets[targets != targets.round()][0]):g}"
    elif different > _FEW_LABELS and 2 * different > len(targets):
        why = f"{len(targets)} samples have {different} different ones"
    else:
        return targets.long()
    raise CounterpoiseError(
        f"{what} deals by label, and these targets are not class numbers: {why}. Use iid, power-law or "
        "quantity-dirichlet, which look at no label, or deal by bins of the targets (see docs/data.md)."
    )


@PARTITIONS.register("iid")
def iid(clients: Clients) -> Partition:
    """Every client gets a random, equal share of the samples."""

    def assign(labels: Tensor, seed: int) -> Assignment:
        need(len(labels), clients, f"partition iid cannot give each of {clients} clients a sample")
        rows = torch.from_numpy(generator_of(seed, "iid").permutation(len(labels)))
        return Table.of(torch.arange(len(labels)) * clients // len(labels), rows, clients)

    return Partition(clients, assign)


@PARTITIONS.register("draws")
def draws(
    clients: Clients,
    size: Annotated[int, Option("samples of each client", low=1)] = 20,
) -> Partition:
    """Each client draws its samples from a shared base by a hash of its number; clients overlap."""

    def assign(labels: Tensor, seed: int) -> Assignment:
        need(len(labels), size, f"partition draws cannot give a client {size} samples")
        return Drawn(clients, len(labels), integer(seed, purpose("draws")), size)

    return Partition(clients, assign)


@PARTITIONS.register("mixed")
def mixed(
    first: Annotated[Partition, Option("the recipe of the first clients")],
    second: Annotated[Partition, Option("the recipe of the others")],
) -> Partition:
    """Some clients by one recipe and the rest by another; each client's share of the samples is the same."""
    if first.clients is None or second.clients is None or {first.column, second.column} != {"label"}:
        raise CounterpoiseError(
            "partition mixed joins two recipes that deal by label to a known number of clients; "
            "identities and files cannot be mixed."
        )
    clients = first.clients + second.clients

    def assign(labels: Tensor, seed: int) -> Assignment:
        order = torch.from_numpy(generator_of(seed, "mixed").permutation(len(labels)))
        cut = len(labels) * first.clients // clients  # type: ignore[operator]
        tables = []
        for part, recipe, word in ((order[:cut], first, "mixed 1"), (order[cut:], second, "mixed 2")):
            held = recipe.assign(labels[part], integer(seed, purpose(word)))
            if not isinstance(held, Table):
                raise CounterpoiseError("partition mixed: clients that draw from a shared base cannot be mixed.")
            tables.append(Table(held.offsets, part[held.flat]))
        one, two = tables
        return Table(torch.cat([one.offsets, one.offsets[-1] + two.offsets[1:]]), torch.cat([one.flat, two.flat]))

    return Partition(clients, assign)


def top_up(owners: np.ndarray, clients: int, minimum: int, generator: np.random.Generator) -> None:
    """Give each client that lacks samples those it lacks, one by one from whoever has most."""
    counts = np.bincount(owners, minlength=clients)
    lacking = np.flatnonzero(counts < minimum)
    asked = int((minimum - counts[lacking]).sum())
    if not asked:
        return
    given = _skimmed(counts, asked)
    rows = generator.permutation(len(owners))
    rows = rows[np.argsort(owners[rows], kind="stable")]
    rank = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    owners[rows[rank < np.repeat(given, counts)]] = np.repeat(lacking, minimum - counts[lacking])


def _skimmed(counts: np.ndarray, asked: int) -> np.ndarray:
    """What each gives when `asked` samples are taken one by one from the largest, the first of equals.

    All that stand above a level come down to it; the level is found by bisection, so that it does not
    matter how many samples or clients there are.
    """
    low, high = 0, int(counts.max())
    while low < high:  # the lowest level above which there are at most `asked`
        level = (low + high) // 2
        if np.maximum(counts - level, 0).sum() <= asked:
            high = level
        else:
            low = level + 1
    given: np.ndarray = np.maximum(counts - low, 0)
    given[np.flatnonzero(counts >= low)[: asked - int(given.sum())]] += 1
    return given
