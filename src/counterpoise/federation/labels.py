"""Partitions in which clients differ in their labels."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.assignment import Assignment, Table
from counterpoise.federation.partition import (
    PARTITIONS,
    Clients,
    Minimum,
    Partition,
    class_numbers,
    dirichlet_shares,
    generator_of,
    need,
    top_up,
)
from counterpoise.registry import Option

__all__ = ["capped_dirichlet", "dirichlet", "lq", "rare", "shards"]


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
            f"partition shards: {clients} clients with {per_client} shards each need {used} shards, "
            f"but total is {count}."
        )

    def assign(labels: Tensor, seed: int) -> Assignment:
        labels = class_numbers(labels, "partition shards")
        need(len(labels), count, f"partition shards cannot cut the samples into {count} shards")
        generator = generator_of(seed, "shards")
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
    minimum: Minimum = 2,
) -> Partition:
    """Each label is dealt in proportions drawn from a Dirichlet distribution (Yurochkin et al. 2019)."""

    def assign(labels: Tensor, seed: int) -> Assignment:
        classes = class_numbers(labels, "partition dirichlet").numpy()
        need(
            len(classes),
            clients * minimum,
            f"partition dirichlet cannot give each of {clients} clients {minimum} samples",
        )
        generator = generator_of(seed, "dirichlet")
        owners = _deal(classes, alpha, clients, np.inf, generator)
        top_up(owners, clients, minimum, generator)
        order = torch.from_numpy(generator.permutation(len(classes)))
        return Table.of(torch.from_numpy(owners)[order], order, clients)

    return Partition(clients, assign)


_DRAWS = 1000
"""A partition that does not give every client enough is drawn again, up to this many times."""


@PARTITIONS.register("capped-dirichlet")
def capped_dirichlet(
    alpha: Annotated[float, Option("concentration; smaller is more skewed", above=0)],
    clients: Clients,
    minimum: Annotated[int, Option("fewest samples of a client; drawn again until all have them", low=0)] = 10,
) -> Partition:
    """As dirichlet, but a client that holds its equal share of the samples gets no further labels (Li et al. 2022)."""

    def assign(labels: Tensor, seed: int) -> Assignment:
        classes = class_numbers(labels, "partition capped-dirichlet").numpy()
        need(
            len(classes),
            clients * minimum,
            f"partition capped-dirichlet cannot give each of {clients} clients {minimum} samples",
        )
        generator = generator_of(seed, "capped-dirichlet")
        for _ in range(_DRAWS):
            owners = _deal(classes, alpha, clients, len(classes) / clients, generator)
            if np.bincount(owners, minlength=clients).min() >= minimum:
                order = torch.from_numpy(generator.permutation(len(classes)))
                return Table.of(torch.from_numpy(owners)[order], order, clients)
        raise CounterpoiseError(
            f"partition capped-dirichlet: none of {_DRAWS} draws gave each of {clients} clients {minimum} samples. "
            "Use fewer clients, a larger alpha or a lower minimum."
        )

    return Partition(clients, assign)


def _deal(classes: np.ndarray, alpha: float, clients: int, most: float, generator: np.random.Generator) -> np.ndarray:
    """Deal label by label in Dirichlet proportions to the clients that have fewer than `most` samples so far."""
    owners, held = np.empty(len(classes), dtype=np.int64), np.zeros(clients, dtype=np.int64)
    for label in np.unique(classes):
        rows = generator.permutation(np.flatnonzero(classes == label))
        shares = dirichlet_shares(alpha, held < most, generator)
        edges = np.cumsum(shares / shares.sum())[:-1] * len(rows)
        owners[rows] = np.searchsorted(edges.round(), np.arange(len(rows)), side="right")
        held += np.bincount(owners[rows], minlength=clients)
    return owners


_BLOCK = 1 << 22
"""Most random numbers drawn at once: a matrix of a million clients by a thousand labels would be too large."""


@PARTITIONS.register("lq")
def lq(
    labels: Annotated[int, Option("different labels per client", low=1)],
    clients: Clients,
) -> Partition:
    """Each client has k labels (LQ-k); the clients that have a label share its samples equally (Li et al. 2022)."""
    count = labels

    def assign(labels: Tensor, seed: int) -> Assignment:
        kinds, codes = np.unique(class_numbers(labels, "partition lq").numpy(), return_inverse=True)
        if count > len(kinds):
            raise CounterpoiseError(
                f"partition lq cannot give each client {count} labels: the data has {len(kinds)}. Use fewer labels."
            )
        generator = generator_of(seed, "lq")
        chosen = _labels_of_clients(clients, count, len(kinds), generator)
        takers = np.argsort(chosen, axis=None, kind="stable") // count  # clients, label by label
        takers_of = np.bincount(chosen.ravel(), minlength=len(kinds))
        samples_of = np.bincount(codes, minlength=len(kinds))
        short = np.flatnonzero((samples_of < takers_of) & (takers_of > 0))
        if len(short):
            label = short[0]
            raise CounterpoiseError(
                f"partition lq: label {kinds[label]} has {samples_of[label]} samples for {takers_of[label]} clients. "
                "Use fewer clients or labels."
            )
        # Samples sorted by label, in random order within it; the j-th of n goes to taker j * takers // n.
        shuffled = generator.permutation(len(codes))
        rows = shuffled[np.argsort(codes[shuffled], kind="stable")]
        of = codes[rows]
        rank = np.arange(len(rows)) - (np.cumsum(samples_of) - samples_of)[of]
        turn = rank * takers_of[of] // samples_of[of]
        taken = takers_of[of] > 0  # with few clients, some labels may go to nobody
        first = np.cumsum(takers_of) - takers_of
        owners = takers[(first[of] + turn)[taken]]
        return Table.of(torch.from_numpy(owners), torch.from_numpy(rows[taken]), clients)

    return Partition(clients, assign)


@PARTITIONS.register("rare")
def rare(
    labels: Annotated[int, Option("how many labels are rare: the last ones", low=1)],
    holders: Annotated[int, Option("clients that hold the rare labels, and no others: the first ones", low=1)],
    clients: Clients,
) -> Partition:
    """A few clients hold all samples of the last labels and nothing else; the others hold the rest, IID."""
    count = labels
    if holders >= clients:
        raise CounterpoiseError(
            f"partition rare: {holders} holders of the rare labels leave none of {clients} clients for the others."
        )

    def assign(labels: Tensor, seed: int) -> Assignment:
        kinds, codes = np.unique(class_numbers(labels, "partition rare").numpy(), return_inverse=True)
        if count >= len(kinds):
            raise CounterpoiseError(f"partition rare: {count} of {len(kinds)} labels cannot be rare. Use fewer labels.")
        rows = generator_of(seed, "rare").permutation(len(codes))
        scarce = codes[rows] >= len(kinds) - count
        need(int(scarce.sum()), holders, f"partition rare cannot give each of {holders} holders a sample")
        need(int((~scarce).sum()), clients - holders, f"partition rare cannot give each of {clients} clients a sample")
        turn = np.where(scarce, np.cumsum(scarce), np.cumsum(~scarce)) - 1
        owners = np.where(scarce, turn % holders, holders + turn % (clients - holders))
        return Table.of(torch.from_numpy(owners), torch.from_numpy(rows), clients)

    return Partition(clients, assign)


def _labels_of_clients(clients: int, count: int, kinds: int, generator: np.random.Generator) -> np.ndarray:
    """``[clients, count]`` different labels per client: the first in turn, so that none is left out, then at random."""
    chosen = np.empty((clients, count), dtype=np.int64)
    first = np.resize(generator.permutation(kinds), clients)
    for start in range(0, clients, max(1, _BLOCK // kinds)):
        stop = min(clients, start + max(1, _BLOCK // kinds))
        ranks = generator.random((stop - start, kinds))
        ranks[np.arange(stop - start), first[start:stop]] = -1.0
        chosen[start:stop] = np.argpartition(ranks, count - 1, axis=1)[:, :count]
    return chosen
