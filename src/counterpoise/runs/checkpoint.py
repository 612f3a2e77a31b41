"""A run's state on disk: safetensors for tensors, JSON for the rest, no pickle.

A checkpoint folder holds the index ``checkpoint.json``, the server's state of round R in ``state-R.safetensors``, and
the rows of clients in ``rows-R.safetensors``. Many rows are split into ``rows-R.safetensors``, ``rows-R-1.safetensors``
and so on, so that only one piece at a time is in memory. A save writes only the rows that changed since the last save.
If two files hold a row of the same client, the later one counts; a file is removed once none of its rows counts.

The index holds the digest of every file, so that a damaged or foreign file is noticed, and the digests of the run's
records up to that round. A save takes effect when ``checkpoint.json`` is replaced; until then the old checkpoint is
intact.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from counterpoise.engine.rounds.lengths import Lengths
from counterpoise.engine.rounds.loop import Loop
from counterpoise.engine.rounds.store import Store
from counterpoise.errors import CounterpoiseError
from counterpoise.runs.contents import INDEX, of_checkpoint
from counterpoise.runs.files import open_plain, replace_file, replace_text
from counterpoise.runs.index import SCHEMA, read_index

__all__ = ["Checkpoint"]

_PIECE = 2**28
"""Bytes of rows in one file. A save or a load needs a few times that in memory."""


class Checkpoint:
    """The checkpoint folder of one run; `fingerprint` is that of the run's configuration."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder, self.fingerprint = folder, fingerprint
        self._newest: dict[tuple[str, int], str] = {}
        """For each store and client, the rows file that holds its row: ``R`` or ``R-k``."""
        self._digests: dict[str, str] = {}
        """For each rows file in use, its digest."""

    def save(self, loop: Loop, status: str, records: Mapping[str, str] | None = None) -> None:
        """Write the state after the loop's last round; `records` are the digests of the run's other files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        round = loop.round
        stores = _stores(loop)
        newest = dict(self._newest)
        for piece, some in enumerate(_pieces(stores)):
            saved = f"{round}-{piece}" if piece else str(round)
            rows: dict[str, Tensor] = {}
            for name, clients in some.items():
                rows[f"{name}/"] = torch.tensor(clients)
                rows |= {f"{name}/{key}": t.contiguous() for key, t in stores[name].gather(clients).items()}
                newest |= {(name, client): saved for client in clients}
            replace_file(self._rows(saved), lambda path, rows=rows: save_file(rows, path))  # type: ignore[misc]
            self._digests[saved] = _digest(self._rows(saved))
        live = set(newest.values())
        state = {"model": loop.server.model}
        for part, named in loop.server.state.items():
            state |= {f"{part}/{name}": tensor for name, tensor in named.items()}
        held = {key: tensor.clone() for key, tensor in state.items()}  # two names may share a tensor
        replace_file(self._state(round), lambda path: save_file(held, path))
        index = {
            "schema": SCHEMA,
            "run": self.fingerprint,
            "round": round,
            "status": status,
            "state": _digest(self._state(round)),
            "rows": {saved: digest for saved, digest in self._digests.items() if saved in live},
            "records": dict(records or {}),
            "lengths": dict(loop.server.lengths.latest),
        }
        replace_text(self.folder / INDEX, json.dumps(index, indent=1) + "\n")
        for store in stores.values():
            store.touched.clear()
        self._newest = newest
        self._clean(round)

    def load(self, loop: Loop) -> dict[str, Any]:
        """Bring a new loop to the saved state, and return the index."""
        index = read_index(self.folder)
        if index["run"] != self.fingerprint:
            raise CounterpoiseError(
                f"The checkpoint in {self.folder} belongs to another run: its configuration is not this one's."
            )
        device = loop.server.model.device
        state = self._read(self._state(int(index["round"])), index["state"], device)
        server = loop.server
        fresh = {"model": server.model} | {f"{p}/{n}": t for p, named in server.state.items() for n, t in named.items()}
        # A method of an earlier version may have kept more than it does today. It may also lack state that starts as
        # infinity, meaning unknown: that keeps its initial value.
        state = {name: own for name, own in fresh.items() if not bool(own.isfinite().any())} | state
        if any(k not in state or (t.shape, t.dtype) != (state[k].shape, state[k].dtype) for k, t in fresh.items()):
            raise CounterpoiseError(f"The checkpoint in {self.folder} does not fit this run's method and model.")
        server.model = state["model"]
        server.state = {
            part: {name: state[f"{part}/{name}"].to(own.device) for name, own in named.items()}
            for part, named in server.state.items()
        }
        server.lengths = Lengths(index.get("lengths", {}))
        loop.round = int(index["round"])
        stores = _stores(loop)
        self._digests = dict(index["rows"])
        for saved in sorted(self._digests, key=lambda saved: [int(number) for number in saved.split("-")]):
            rows = self._read(self._rows(saved), self._digests[saved], device)
            for name, store in stores.items():
                for place, client in enumerate(rows[f"{name}/"].tolist() if f"{name}/" in rows else ()):
                    store.put(
                        client, {k: rows[f"{name}/{k}"][place].clone().to(t.device) for k, t in store.initial.items()}
                    )
                    self._newest[name, client] = saved
        for store in stores.values():
            store.touched.clear()
        self._clean(loop.round)
        return index

    def _clean(self, round: int) -> None:
        """Remove files that the checkpoint does not need: older states, and rows files whose rows are all outdated."""
        self._digests = {saved: self._digests[saved] for saved in set(self._newest.values())}
        needed = {self._state(round), *map(self._rows, self._digests)}
        for path in self.folder.iterdir():
            if of_checkpoint(path.name) and path.name != INDEX and path not in needed:
                path.unlink(missing_ok=True)

    def _read(self, path: Path, digest: str, device: torch.device) -> dict[str, Tensor]:
        try:
            if _digest(path) == digest:
                return load_file(path, device=str(device))
        except (SafetensorError, OSError):
            pass
        raise CounterpoiseError(
            f"The checkpoint is damaged: {path} is missing or is not what was written. Start the run again."
        )

    def _state(self, round: int) -> Path:
        return self.folder / f"state-{round}.safetensors"

    def _rows(self, saved: str) -> Path:
        return self.folder / f"rows-{saved}.safetensors"


def _stores(loop: Loop) -> dict[str, Store]:
    server = loop.server
    kinds = {"record": server.records, "client": loop.client_state, "accepted": server.accepted}
    return {f"{kind}/{name}": store for kind, stores in kinds.items() for name, store in stores.items()}


def _pieces(stores: Mapping[str, Store]) -> Iterator[dict[str, list[int]]]:
    """The clients whose rows changed, by store, in pieces whose rows fit into memory together."""
    piece: dict[str, list[int]] = {}
    held = 0
    for name, store in stores.items():
        for client in sorted(store.touched):
            if piece and held + store.row > _PIECE:
                yield piece
                piece, held = {}, 0
            piece.setdefault(name, []).append(client)
            held += store.row
    if piece:
        yield piece


def _digest(path: Path) -> str:
    with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
