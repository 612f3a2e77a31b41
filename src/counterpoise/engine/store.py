"""Rows of tensors per client, allocated when a client is first seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["Store"]

Row = dict[str, Tensor]


class Store:
    """One named row of tensors per client; a client never written has the initial row.

    `touched` names the clients written since it was last cleared: what a checkpoint must add.
    """

    def __init__(self, initial: Row) -> None:
        self.initial = initial
        self.touched: set[int] = set()
        self._rows: dict[int, Row] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._rows))

    def __getitem__(self, client: int) -> Row:
        return self._rows.get(client, self.initial)

    def gather(self, clients: Sequence[int]) -> Row:
        """The rows of some clients, stacked in their order."""
        return {name: torch.stack([self[client][name] for client in clients]) for name in self.initial}

    def scatter(self, clients: Iterable[int], stacked: Mapping[str, Tensor]) -> None:
        """Write stacked rows. Each is a copy, so that no round's whole stack stays in memory."""
        for place, client in enumerate(clients):
            self.put(client, {name: stacked[name][place].clone() for name in self.initial})

    def put(self, client: int, row: Row) -> None:
        self._rows[client] = row
        self.touched.add(client)

    def drop(self) -> None:
        """Forget every client."""
        self._rows.clear()
        self.touched.clear()
