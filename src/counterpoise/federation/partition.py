"""How samples are dealt to clients.

A partition is a recipe: `assign(labels, seed)` gives the same `Assignment` for the same labels and
seed, or says in a sentence why it cannot be made.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.assignment import Assignment, Drawn, Table
from counterpoise.randomness import integer, purpose
from counterpoise.registry import Option, Registry, Spec

__all__ = ["PARTITIONS", "Partition", "dirichlet", "draws", "iid", "shards"]


@dataclass(frozen=True)
class Partition:
    """A recipe that deals samples to `clients` clients."""

    clients: int
    assign: Callable[[Tensor, int], Assignment]
    spec: Spec = field(default_factory=Spec)


PARTITIONS: Registry[Partition] = Registry("partition")
Clients = Annotated[int, Option("number of clients", low=1)]


def _generator(seed: int, what: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(integer(seed, purpose(what))))


def _need(samples: int, least: int, why: str) -> None:
    if samples < least:
        raise CounterpoiseError(
            f"{why}: that needs at least {least} samples, and there are {samples}. Use fewer clients."
        )


@PARTITIONS.register("iid")
def iid(clients: Clients) -> Partition:
    """Every client gets a random, equal share of the samples."""

    def assign(labels: Tensor, seed: int) -> Assignment:
        _need(len(labels), clients, f"partition iid cannot give each of {clients} clients a sample")
        rows = torch.from_numpy(_generator(seed, "iid").permutation(len(labels)))
        return Table.of(torch.arange(len(labels)) * clients // len(labels), rows, clients)

    return Partition(clients, assign)


@PARTITIONS.register("shards")
def shards(
    clients: Clients,
    per_client: Annotated[int, Option("shards each client gets", low=1)] = 2,
    total: Annotated[int | None, Option("shards in all; those beyond clients x per_client stay unused", low=1)] = None,
) -> Partition:
    """Samples sorted by label, cut into shards, a few shards to each client (McMahan et al. 2017)."""
    used = clients * per_client
    count = total or used
    if count < used:
        raise CounterpoiseError(
            f"partition shards: {clients} clients with {per_client} shards each need {used} shards, and total is {count}."
        )

    def assign(labels: Tensor, seed: int) -> Assignment:
        _need(len(labels), count, f"partition shards cannot cut the samples into {count} shards")
        generator = _generator(seed, "shards")
        shuffled = torch.from_numpy(generator.permutation(len(labels)))
        by_label = shuffled[labels[shuffled].argsort(stable=True)]
        size = len(labels) // count  # equal shards; fewer than `count` samples at the end stay unused
        dealt = torch.from_numpy(generator.permutation(count))[:used]
        rows = by_label[: count * size].view(count, size)[dealt]
        return Table.of(torch.arange(clients).repeat_interleave(per_client * size), rows.flatten(), clients)

    return Partition(clients, assign)


@PARTITIONS.register("dirichlet")
def dirichlet(
    alpha: Annotated[float, Option("concentration; smaller is more skewed", above=0)],
    clients: Clients,
    minimum: Annotated[int, Option("samples every client has at least; the largest clients give them up", low=0)] = 2,
) -> Partition:
    """Each label is dealt in proportions drawn from a Dirichlet distribution (Hsu et al. 2019)."""

    def assign(labels: Tensor, seed: int) -> Assignment:
        _need(
            len(labels),
            clients * minimum,
            f"partition dirichlet cannot give each of {clients} clients {minimum} samples",
        )
        generator = _generator(seed, "dirichlet")
        owners = np.empty(len(labels), dtype=np.int64)
        classes = labels.numpy()
        for label in np.unique(classes):
            rows = generator.permutation(np.flatnonzero(classes == label))
            # Gammas over their sum are a Dirichlet draw; a tiny alpha can make every one of them 0.
            shares = generator.standard_gamma(alpha, clients)
            if shares.sum() == 0:
                shares[generator.integers(clients)] = 1.0
            edges = np.cumsum(shares / shares.sum())[:-1] * len(rows)
            owners[rows] = np.searchsorted(edges.round(), np.arange(len(rows)), side="right")
        _top_up(owners, clients, minimum, generator)
        order = torch.from_numpy(generator.permutation(len(labels)))
        return Table.of(torch.from_numpy(owners)[order], order, clients)

    return Partition(clients, assign)


def _top_up(owners: np.ndarray, clients: int, minimum: int, generator: np.random.Generator) -> None:
    """Give each client that lacks samples those it lacks, taken from whoever has most to spare."""
    counts = np.bincount(owners, minlength=clients)
    lacking = np.flatnonzero(counts < minimum)
    if not len(lacking):
        return
    heap = [(-int(count), client) for client, count in enumerate(counts) if count > minimum]
    heapq.heapify(heap)
    given = np.zeros(clients, dtype=np.int64)
    for _ in range(int((minimum - counts[lacking]).sum())):
        count, client = heap[0]
        heapq.heapreplace(heap, (count + 1, client))
        given[client] += 1
    rows = generator.permutation(len(owners))
    rows = rows[np.argsort(owners[rows], kind="stable")]
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    donated = np.concatenate([rows[s : s + g] for s, g in zip(starts[given > 0], given[given > 0], strict=True)])
    owners[donated] = np.repeat(lacking, minimum - counts[lacking])


@PARTITIONS.register("draws")
def draws(
    clients: Clients,
    size: Annotated[int, Option("samples of each client", low=1)] = 20,
) -> Partition:
    """Each client draws its samples from a shared base by a hash of its number; clients overlap."""

    def assign(labels: Tensor, seed: int) -> Assignment:
        _need(len(labels), size, f"partition draws cannot give a client {size} samples")
        return Drawn(clients, len(labels), integer(seed, purpose("draws")), size)

    return Partition(clients, assign)
