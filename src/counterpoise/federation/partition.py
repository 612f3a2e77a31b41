"""How samples are dealt to clients.

A partition is a recipe: `assign(labels, seed)` gives the same `Assignment` for the same labels and
seed, or raises an error that says why it cannot. This module has the recipe type and the recipes that
ignore labels; `labels`, `allocation`, `quantities`, `given` and `flower` have the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError, check_call, takes_only_its_options
from counterpoise.federation.assignment import Assignment, Drawn, Table
from counterpoise.randomness import integer, purpose
from counterpoise.registry import Option, Registry, Spec

__all__ = [
    "PARTITIONS",
    "Clients",
    "Minimum",
    "Partition",
    "class_numbers",
    "dirichlet_shares",
    "draws",
    "generator_of",
    "iid",
    "mixed",
    "need",
    "top_up",
]


@takes_only_its_options()
@dataclass(frozen=True)
class Partition:
    """A recipe that deals samples to `clients` clients; None if the data decides how many."""

    clients: int | None
    assign: Callable[[Tensor, int], Assignment]
    column: Literal["label", "identity", "row"] = "label"
    """What `assign` gets for each sample: its target, its identity, or just its row number.

    Targets may be anything; a recipe that deals by label turns them into `class_numbers`."""
    spec: Spec = field(default_factory=Spec)

    def __post_init__(self) -> None:
        check_call(self.assign, "assign(column, seed)", "Partition")


PARTITIONS: Registry[Partition] = Registry("partition", Partition)
Clients = Annotated[int, Option("number of clients", low=1)]
Minimum = Annotated[int, Option("fewest samples of a client; the largest clients make up for a shortage", low=0)]


def generator_of(seed: int, what: str) -> np.random.Generator:
    """NumPy's generator for one purpose."""
    return np.random.Generator(np.random.Philox(integer(seed, purpose(what))))


def dirichlet_shares(alpha: float, open: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Numbers in the proportions of a Dirichlet draw over the places that are `open`, and 0 elsewhere."""
    shares = np.where(open, generator.standard_gamma(alpha, len(open)), 0.0)
    if shares.sum() == 0:  # a tiny alpha can make every one of them 0
        places = np.flatnonzero(open)
        shares[places[generator.integers(len(places))]] = 1.0
    return shares


def need(samples: int, least: int, why: str) -> None:
    """Refuse a partition for which there are too few samples."""
    if samples < least:
        raise CounterpoiseError(
            f"{why}: that needs at least {least} samples, but there are {samples}. Use fewer clients."
        )


_FEW_LABELS = 20
"""Up to this many different targets always count as labels; more must have two samples each on average."""


def class_numbers(targets: Tensor, what: str) -> Tensor:
    """Targets as class numbers: whole numbers, each shared by several samples. Regression targets are refused."""
    different = 0 if targets.ndim != 1 else len(np.unique(targets.numpy()))
    if targets.ndim != 1:
        why = f"each is an array of shape {tuple(targets.shape[1:])}"
    elif targets.is_floating_point() and not torch.equal(targets, targets.round()):
        why = f"they are fractions such as {float(targets[targets != targets.round()][0]):g}"
    elif different > _FEW_LABELS and 2 * different > len(targets):
        why = f"{len(targets)} samples have {different} different values"
    else:
        return targets.long()
    raise CounterpoiseError(
        f"{what} deals by label, but these targets are not class numbers: {why}. Use iid, power-law or "
        "quantity-dirichlet, which ignore labels, or deal by bins of the targets (see docs/data.md)."
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
    size: Annotated[int, Option("samples per client", low=1)] = 20,
) -> Partition:
    """Each client draws its samples from a shared base by a hash of its number; clients overlap."""

    def assign(labels: Tensor, seed: int) -> Assignment:
        need(len(labels), size, f"partition draws cannot give a client {size} samples")
        return Drawn(clients, len(labels), integer(seed, purpose("draws")), size)

    return Partition(clients, assign)


@PARTITIONS.register("mixed")
def mixed(
    first: Annotated[Partition, Option("the recipe for the first clients")],
    second: Annotated[Partition, Option("the recipe for the others")],
) -> Partition:
    """Deal to some clients by one recipe and to the rest by another, with samples in proportion to their numbers."""
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
    """Bring every client up to the minimum, taking samples one by one from whichever client has most."""
    counts = np.bincount(owners, minlength=clients)
    lacking = np.flatnonzero(counts < minimum)
    asked = int((minimum - counts[lacking]).sum())
    if not asked:
        return
    given = _skim(counts, asked)
    rows = generator.permutation(len(owners))
    rows = rows[np.argsort(owners[rows], kind="stable")]
    rank = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    owners[rows[rank < np.repeat(given, counts)]] = np.repeat(lacking, minimum - counts[lacking])


def _skim(counts: np.ndarray, asked: int) -> np.ndarray:
    """How many samples each client gives if `asked` are taken one by one from the largest, the first in a tie.

    That cuts every client above some level down to it. Bisection finds the level quickly, however many
    samples or clients there are.
    """
    low, high = 0, int(counts.max())
    while low < high:  # the lowest level above which lie at most `asked` samples
        level = (low + high) // 2
        if np.maximum(counts - level, 0).sum() <= asked:
            high = level
        else:
            low = level + 1
    given: np.ndarray = np.maximum(counts - low, 0)
    given[np.flatnonzero(counts >= low)[: asked - int(given.sum())]] += 1
    return given
