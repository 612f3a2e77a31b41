"""Rows of tensors per client, allocated when a client is first seen; beyond a budget they lie on disk."""

from __future__ import annotations

import contextlib
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.flat import raw_bytes

__all__ = ["Store", "row_bytes"]

Row = dict[str, Tensor]


class Store:
    """One named row of tensors per client; a client never written has the initial row.

    Rows beyond `memory` bytes go to a file that has no name, so that the system removes it however the run ends.
    Where a row lies changes no number. `touched` names the clients written since it was last cleared: what a
    checkpoint must add.
    """

    def __init__(self, initial: Row, memory: float = float("inf")) -> None:
        self.initial = initial
        self.touched: set[int] = set()
        self.row = row_bytes(initial)
        self._most = memory / max(self.row, 1)
        self._rows: dict[int, Row] = {}
        self._places: dict[int, int] = {}
        """For each client on disk, the place of its row in the file."""
        self._file: IO[bytes] | None = None

    def __len__(self) -> int:
        return len(self._rows) + len(self._places)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted([*self._rows, *self._places]))

    def __getitem__(self, client: int) -> Row:
        if client in self._places:
            return self._read(self._places[client])
        return self._rows.get(client, self.initial)

    @property
    def spilled(self) -> int:
        """How many rows lie on disk."""
        return len(self._places)

    @property
    def bytes(self) -> int:
        """What all rows take, wherever they lie."""
        return len(self) * self.row

    def gather(self, clients: Sequence[int]) -> Row:
        """The rows of some clients, stacked in their order."""
        rows = [self[client] for client in clients]
        return {name: torch.stack([row[name] for row in rows]) for name in self.initial}

    def scatter(self, clients: Iterable[int], stacked: Mapping[str, Tensor]) -> None:
        """Write stacked rows. Each is a copy, so that no round's whole stack stays in memory."""
        for place, client in enumerate(clients):
            self.put(client, {name: stacked[name][place].clone() for name in self.initial})

    def put(self, client: int, row: Row) -> None:
        if client in self._rows or (client not in self._places and len(self._rows) < self._most):
            self._rows[client] = row
        else:
            self._write(self._places.setdefault(client, len(self._places)), row)
        self.touched.add(client)

    def drop(self) -> None:
        """Forget every client."""
        self._rows.clear()
        self._places.clear()
        self.touched.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, place: int, row: Row) -> None:
        with _on_disk():
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="counterpoise-")  # noqa: SIM115
                weakref.finalize(self, self._file.close)
            self._file.seek(place * self.row)
            for name in self.initial:
                self._file.write(raw_bytes(row[name]))
            self._file.flush()  # a full disk is noticed here, not at some later read

    def _read(self, place: int) -> Row:
        assert self._file is not None
        row = {}
        with _on_disk():
            self._file.seek(place * self.row)
            for name, like in self.initial.items():
                raw = np.frombuffer(bytearray(self._file.read(row_bytes({name: like}))), dtype=np.uint8)
                row[name] = torch.from_numpy(raw).view(like.dtype).view(like.shape).to(like.device)
        return row


@contextlib.contextmanager
def _on_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CounterpoiseError(
            f"Rows of clients could not be kept in the temporary folder {tempfile.tempdir or '(none found)'}: "
            f"{error.strerror or error}. Set TMPDIR to a folder on a disk with room, or raise the engine's store_gib."
        ) from error


def row_bytes(row: Mapping[str, Tensor]) -> int:
    """The bytes of a row's numbers."""
    return sum(tensor.numel() * tensor.element_size() for tensor in row.values())
