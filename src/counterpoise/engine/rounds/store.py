"""A row of tensors per client, allocated when the client is first seen; rows beyond a budget lie on disk."""

from __future__ import annotations

import contextlib
import math
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

import numpy as np
import torch
from torch import Tensor

from counterpoise.engine.devices import put
from counterpoise.errors import CounterpoiseError
from counterpoise.flat import raw_bytes

__all__ = ["Store", "row_bytes"]

Row = dict[str, Tensor]


class Store:
    """One row of named tensors per client; a client never written has the initial row.

    For each name, one tensor holds all rows, so that a cohort's rows are read or written in one operation. It lies on
    the device of the initial row's tensor and grows by doubling. Rows beyond `memory` bytes go to a file without a name,
    which the system removes however the run ends. Where a row lies changes no result. `touched` holds the clients
    written since it was last cleared, which the next checkpoint must add.
    """

    def __init__(self, initial: Row, memory: float = float("inf")) -> None:
        self.initial = initial
        self.touched: set[int] = set()
        self.row = row_bytes(initial)
        self._devices = {tensor.device for tensor in initial.values()}
        self._most = memory / max(self.row, 1)
        self._rows = _only_initial(initial)
        """The first row is the initial one."""
        self._here: dict[int, int] = {}
        """For each client in memory, the place of its row."""
        self._places: dict[int, int] = {}
        """For each client on disk, the place of its row in the file."""
        self._file: IO[bytes] | None = None

    def __len__(self) -> int:
        return len(self._here) + len(self._places)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted([*self._here, *self._places]))

    def __getitem__(self, client: int) -> Row:
        return {name: rows[0] for name, rows in self.gather([client]).items()}

    @property
    def spilled(self) -> int:
        """How many rows lie on disk."""
        return len(self._places)

    @property
    def bytes(self) -> int:
        """The bytes of all rows, wherever they lie."""
        return len(self) * self.row

    def gather(self, clients: Sequence[int]) -> Row:
        """The rows of some clients, stacked in their order: a copy."""
        if not clients:
            return {name: rows[:0] for name, rows in self._rows.items()}
        index = self._index([self._here.get(client, 0) for client in clients])
        found = {name: rows.index_select(0, index[rows.device]) for name, rows in self._rows.items()}
        for place, client in enumerate(clients) if self._places else ():
            if client in self._places:
                for name, tensor in self._read(self._places[client]).items():
                    found[name][place] = tensor
        return found

    def scatter(self, clients: Sequence[int], stacked: Mapping[str, Tensor]) -> None:
        """Write stacked rows: into memory as long as there is room, then to disk."""
        for client in clients:
            if client not in self._here and client not in self._places and len(self._here) < self._most:
                self._here[client] = len(self._here) + 1
        self._grow()
        kept = [place for place, client in enumerate(clients) if client in self._here]
        to, all_kept = self._index([self._here[clients[place]] for place in kept]), len(kept) == len(clients)
        for name, rows in self._rows.items():
            rows.index_copy_(0, to[rows.device], stacked[name] if all_kept else stacked[name][kept])
        for place, client in () if all_kept else enumerate(clients):
            if client not in self._here:
                row = {name: stacked[name][place] for name in self.initial}
                self._write(self._places.setdefault(client, len(self._places)), row)
        self.touched.update(clients)

    def put(self, client: int, row: Row) -> None:
        self.scatter([client], {name: tensor.unsqueeze(0) for name, tensor in row.items()})

    def _index(self, places: list[int]) -> dict[torch.device, Tensor]:
        """Places of rows, on each device that rows lie on."""
        here = torch.from_numpy(np.array(places, dtype=np.int64))  # faster than torch's own reading of a list
        return {device: put(here, device) for device in self._devices}

    def _grow(self) -> None:
        needed = len(self._here) + 1
        for name, rows in self._rows.items():
            if len(rows) < needed:
                room = max(needed, min(2 * len(rows), math.ceil(min(self._most, sys.maxsize)) + 1))
                self._rows[name] = torch.cat((rows, rows.new_empty(room - len(rows), *rows.shape[1:])))

    def drop(self) -> None:
        """Forget every client."""
        self._rows = _only_initial(self.initial)
        self._here.clear()
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


def _only_initial(initial: Row) -> Row:
    """The rows while no client has one: only the initial row."""
    return {name: tensor.unsqueeze(0) for name, tensor in initial.items()}


def row_bytes(row: Mapping[str, Tensor]) -> int:
    """The bytes of a row's numbers."""
    return sum(tensor.numel() * tensor.element_size() for tensor in row.values())
