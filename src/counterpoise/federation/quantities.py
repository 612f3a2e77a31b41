"""Partitions in which clients differ in how much data they have."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from counterpoise.federation.assignment import Assignment, Table
from counterpoise.federation.partition import (
    PARTITIONS,
    Clients,
    Minimum,
    Partition,
    dirichlet_shares,
    generator_of,
    need,
    top_up,
)
from counterpoise.registry import Option

__all__ = ["power_law", "quantity_dirichlet"]


@PARTITIONS.register("power-law")
def power_law(
    clients: Clients,
    exponent: Annotated[float, Option("how fast sizes fall; 0 is equal", low=0)] = 1.0,
    minimum: Minimum = 2,
) -> Partition:
    """The k-th largest client has a share proportional to 1/k^exponent; labels are IID."""

    def assign(labels: Tensor, seed: int) -> Assignment:
        generator = generator_of(seed, "power-law")
        shares = np.exp(-exponent * np.log(np.arange(1, clients + 1)))
        return _deal(len(labels), generator.permutation(shares), minimum, generator, "power-law")

    return Partition(clients, assign)


@PARTITIONS.register("quantity-dirichlet")
def quantity_dirichlet(
    alpha: Annotated[float, Option("concentration; smaller is more unequal", above=0)],
    clients: Clients,
    minimum: Minimum = 2,
) -> Partition:
    """Clients' shares are drawn from a Dirichlet distribution; labels are IID (Li et al. 2022)."""

    def assign(labels: Tensor, seed: int) -> Assignment:
        generator = generator_of(seed, "quantity-dirichlet")
        shares = dirichlet_shares(alpha, np.ones(clients, bool), generator)
        return _deal(len(labels), shares, minimum, generator, "quantity-dirichlet")

    return Partition(clients, assign)


def _deal(n: int, shares: np.ndarray, minimum: int, generator: np.random.Generator, name: str) -> Table:
    """Deal random samples in these proportions, with no client below the minimum."""
    clients = len(shares)
    need(n, clients * minimum, f"partition {name} cannot give each of {clients} clients {minimum} samples")
    edges = np.cumsum(shares / shares.sum())[:-1] * n
    owners = np.searchsorted(edges.round(), np.arange(n), side="right")
    top_up(owners, clients, minimum, generator)
    return Table.of(torch.from_numpy(owners), torch.from_numpy(generator.permutation(n)), clients)
