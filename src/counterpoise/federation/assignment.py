"""Who holds which rows of the shared arrays: stored as a table, or computed from a client's number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.randomness import counter, permuted, purpose
from counterpoise.texts import counted

__all__ = ["Assignment", "Drawn", "Elsewhere", "Table", "apart"]


class Assignment(Protocol):
    """Which rows each client holds."""

    @property
    def clients(self) -> int:
        """How many clients there are."""

    def sizes(self, ids: Tensor) -> Tensor:
        """``[C]`` how many rows each client holds."""

    def rows(self, ids: Tensor) -> Tensor:
        """``[C, width]`` the clients' rows, padded with row 0 to the length of the longest."""

    def split(self, fraction: float, seed: int) -> tuple[Assignment, Assignment]:
        """Split each client's rows into those it trains on and a held-out `fraction`."""


@dataclass(frozen=True)
class Table:
    """Client i holds ``flat[offsets[i]:offsets[i + 1]]``."""

    offsets: Tensor
    flat: Tensor

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        sizes = self.offsets.diff()
        each = f", {int(sizes.min())} to {int(sizes.max())} each" if len(sizes) else ""
        return f"Table({counted(self.clients, 'client')} with {counted(len(self.flat), 'row')}{each})"

    @classmethod
    def of(cls, owners: Tensor, rows: Tensor, clients: int) -> Table:
        """The table in which ``rows[k]`` belongs to client ``owners[k]``; a client's rows keep their order."""
        counts = torch.bincount(owners, minlength=clients)
        if len(owners) and bool((owners.diff() < 0).any()):
            rows = rows[owners.argsort(stable=True)]
        return cls(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), rows)

    @property
    def owners(self) -> Tensor:
        return torch.repeat_interleave(torch.arange(self.clients), self.offsets.diff())

    def sizes(self, ids: Tensor) -> Tensor:
        return self.offsets[ids + 1] - self.offsets[ids]

    def rows(self, ids: Tensor) -> Tensor:
        sizes = self.sizes(ids)
        places = torch.arange(int(sizes.max()) if len(sizes) else 0)
        there = self.offsets[ids][:, None] + places
        real = places < sizes[:, None]
        if not len(self.flat):
            return torch.zeros_like(there)
        return torch.where(real, self.flat[torch.where(real, there, 0)], 0)

    def split(self, fraction: float, seed: int) -> tuple[Table, Table]:
        """At least one row stays for training; a client with two or more rows holds out at least one."""
        sizes, owners = self.offsets.diff(), self.owners
        held = (sizes * fraction).round().long()
        if fraction > 0:
            held = held.clamp(min=1)
        held = torch.minimum(held, (sizes - 1).clamp(min=0))
        rows = self.flat.clone()
        # Clients of equal size are sorted together: many short sorts instead of one long one.
        for size in (2 + torch.bincount(sizes)[2:].nonzero().flatten()).tolist():
            places = self.offsets[:-1][sizes == size][:, None] + torch.arange(size)
            mine = self.flat[places]
            order = counter(seed, purpose("held-out"), mine).argsort(dim=1, stable=True)
            rows[places] = mine.gather(1, order)
        rank = torch.arange(len(self.flat)) - self.offsets[owners]
        out = rank < held[owners]
        return Table.of(owners[~out], rows[~out], self.clients), Table.of(owners[out], rows[out], self.clients)


@dataclass(frozen=True)
class Drawn:
    """Each client's rows are places `first` to `first + size` of a random order of `base` rows.

    The order is a function of the client's number and nothing is stored, so a million clients cost
    nothing. Clients overlap; a client's own rows are distinct.
    """

    clients: int
    base: int
    key: int
    size: int
    first: int = 0

    def sizes(self, ids: Tensor) -> Tensor:
        return torch.full_like(ids, self.size)

    def rows(self, ids: Tensor) -> Tensor:
        places = torch.arange(self.first, self.first + self.size)
        return permuted(counter(self.key, ids)[:, None], places.expand(len(ids), -1), self.base)

    def split(self, fraction: float, seed: int) -> tuple[Drawn, Drawn]:
        held = min(self.size - 1, max(1, round(self.size * fraction))) if fraction > 0 else 0
        kept = self.size - held
        return replace(self, size=kept), replace(self, size=held, first=self.first + kept)


@dataclass(frozen=True)
class Elsewhere:
    """Clients whose data lies on their own machines: the server of a deployment only knows how many there are."""

    clients: int

    def sizes(self, ids: Tensor) -> Tensor:
        raise CounterpoiseError(
            "The server of a deployment does not know how much data its nodes hold. Give a weighted availability your "
            "own weights, and say how often to evaluate."
        )

    def rows(self, ids: Tensor) -> Tensor:
        raise CounterpoiseError(
            "The server of a deployment holds none of its nodes' data; they train on their own machines."
        )

    def split(self, fraction: float, seed: int) -> tuple[Elsewhere, Elsewhere]:
        return self, self


def apart(*held: Assignment) -> bool:
    """Whether every row is known to be held only once: by one client, in one of these assignments."""
    tables = [table.flat for table in held if isinstance(table, Table)]
    return len(tables) == len(held) and len(torch.unique(flat := torch.cat(tables))) == len(flat)
