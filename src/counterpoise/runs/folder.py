"""A run's folder: ``config.toml``, ``metrics.jsonl``, ``clients.jsonl``, ``federation.json`` and the checkpoint.

Both ``.jsonl`` files are ledgers: a line that holds their schema, then one line per round.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w
import torch
from safetensors.torch import save_file

from counterpoise.engine.rounds.loop import Loop
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.engine.rounds.simulation import Batch
from counterpoise.errors import CounterpoiseError
from counterpoise.runs.checkpoint import Checkpoint
from counterpoise.runs.companions import note_batch
from counterpoise.runs.config import Config, parse
from counterpoise.runs.contents import CLIENTS, CONFIG, HOLDINGS, INDEX, METRICS, MODEL, of_checkpoint, of_run
from counterpoise.runs.files import check_plain, is_partial, make_folder, replace_file, replace_text
from counterpoise.runs.index import fingerprint, read_index
from counterpoise.runs.kept import record
from counterpoise.runs.ledger import SCHEMA, Ledger, is_empty
from counterpoise.runs.locks import LOCK, Busy, hold, in_use
from counterpoise.runs.trust import own_names
from counterpoise.texts import parse_toml, read_text

__all__ = ["Folder", "busy", "never_begun"]


def busy(path: Path) -> str:
    """The error for a folder that another process has locked."""
    return f"Another process is working on the run in {path}: the folder is in use. Wait until it ends, or stop it."


class Folder:
    """Where a run is kept."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path, self.config = path, config
        self.checkpoint = Checkpoint(path / "checkpoint", fingerprint(config.plain()))
        self.metrics, self.clients = Ledger(path / METRICS), Ledger(path / CLIENTS)
        self.written = 0
        """The last round that both ledgers hold."""
        self._holdings: dict[str, str] = {}
        """The digest of federation.json under its name; empty if this run wrote none."""

    @classmethod
    @contextlib.contextmanager
    def begun(cls, path: Path, config: Config) -> Iterator[Folder]:
        """Make a new folder for a run and lock it while the block runs. A folder that is not empty is refused."""
        if in_use(path):
            raise Busy(busy(path))
        _check_free(path)
        make_folder(path)
        with hold(path, busy(path)):
            _check_free(path)  # another process may have taken it in the meantime
            folder = cls(path, config)
            folder._clean()
            for ledger in (folder.metrics, folder.clients):
                ledger.begin()
            folder.write_config()
            yield folder

    @classmethod
    def create(cls, path: Path, config: Config) -> Folder:
        """As `begun`, for a caller that does not go on to run rounds."""
        with cls.begun(path, config) as folder:
            return folder

    @classmethod
    def open(cls, path: Path) -> Folder:
        """Open the folder of an earlier run. A folder that holds a link, a pipe or a device is refused."""
        check_plain(path)
        try:
            values = parse_toml(read_text(path / CONFIG), str(path / CONFIG))
        except (FileNotFoundError, NotADirectoryError):
            raise CounterpoiseError(f"{path} holds no run: there is no config.toml in it.") from None
        return cls(path, parse(values, str(path / CONFIG)))

    @property
    def how_to_resume(self) -> str:
        """The command that continues the run, or the call if it needs objects of the user's own."""
        if own := self.config.asked_for:
            return f"cp.resume({str(self.path)!r}, {', '.join(f'{what}=...' for what in own)})"
        trust = ["--trust", "FOLDER"] if own_names(self.config.plain()) else []
        return shlex.join(["counterpoise", "resume", str(self.path), *trust])

    def how_to_repeat(self, rounds: int) -> str:
        """What to do once the cause is removed that kept a run from training.

        If the run uses code or objects of the user's own, it must start again: they may not change in a run that goes on.
        """
        if self.config.asked_for or own_names(self.config.plain()):
            return "run it again with --overwrite (in Python: overwrite=True)."
        return f"give the run more rounds with: {self.how_to_resume} --rounds {rounds}"

    @property
    def _ledgers(self) -> dict[str, Ledger]:
        return {METRICS: self.metrics, CLIENTS: self.clients}

    def _clean(self) -> None:
        """Remove temporary files that a killed process left."""
        for path in self.path.iterdir():
            if is_partial(path.name, of_run):
                path.unlink(missing_ok=True)

    def write_config(self) -> None:
        replace_text(self.path / CONFIG, tomli_w.dumps(self.config.plain()))

    def write_holdings(self, found: Mapping[str, Any]) -> None:
        """Write what `counterpoise.federation.overview.holdings` returned."""
        text = json.dumps({"schema": SCHEMA, **found}, separators=(",", ":")) + "\n"
        replace_text(self.path / HOLDINGS, text)
        self._holdings = {HOLDINGS: _sha256(text)}

    def write_model(self, module: torch.nn.Module) -> Path:
        """Write a model's weights and buffers by name, for ``load_state_dict`` in any other program."""
        # Copies, because the format refuses tensors that share memory; tied weights are tied again by the module.
        state = {name: tensor.cpu().contiguous().clone() for name, tensor in module.state_dict().items()}
        replace_file(self.path / MODEL, lambda partial: save_file(state, partial))
        return self.path / MODEL

    def note_batch(self, batch: Batch | None, round: int) -> None:
        """Note the batch of runs that this one trains in from a round on; None if it trains alone."""
        note_batch(self.path, batch, round)

    @property
    def holdings_changed(self) -> bool:
        """Whether federation.json is missing or differs from what this run wrote."""
        text = ""
        with contextlib.suppress(CounterpoiseError, OSError):
            text = read_text(self.path / HOLDINGS)
        return any(_sha256(text) != digest for digest in self._holdings.values())

    def extend(self, rounds: int) -> None:
        """Change the number of rounds in the configuration, and nothing else."""
        self.config = self.config.model_copy(update={"rounds": rounds})
        self.write_config()

    def append(self, record: RoundRecord) -> None:
        self.metrics.append(_metrics_line(record))
        self.clients.append(_clients_line(record))
        self.written = record.round

    def save(self, loop: Loop, status: str) -> None:
        """Write a checkpoint, after the lines it relies on have been flushed to the disk."""
        for ledger in self._ledgers.values():
            ledger.push()
        digests = {name: ledger.digest for name, ledger in self._ledgers.items()}
        self.checkpoint.save(loop, status, digests | self._holdings)

    def locked(self) -> contextlib.AbstractContextManager[int | None]:
        """Lock the folder for this process, on systems that have file locks."""
        return hold(self.path, busy(self.path))

    def restore(self, loop: Loop, writes: bool = True) -> tuple[list[RoundRecord], str]:
        """Bring a loop back to the checkpoint. If this process `writes`, also drop the ledgers' later lines.

        A run that was killed before its first checkpoint starts from the beginning.
        """
        records = list(self.records())
        status, index = "running", self.checked_index()
        saved = index is not None
        if index is not None:
            self._holdings = {name: digest for name, digest in index.get("records", {}).items() if name == HOLDINGS}
            status = self.checkpoint.load(loop)["status"]
        records = [record for record in records if record.round <= loop.round]
        if [record.round for record in records] != list(range(1, loop.round + 1)):
            raise CounterpoiseError(
                f"{self.path} has lost rounds that its checkpoint needs: metrics.jsonl or clients.jsonl is incomplete."
            )
        loop.recall(records)
        self.written = loop.round
        if writes:
            self._clean()
            for ledger in self._ledgers.values():
                ledger.cut(loop.round) if saved else ledger.begin()
            if not saved:
                self.save(loop, status)
        return records, status

    def checked_index(self) -> dict[str, Any] | None:
        """The checkpoint's index, once the ledgers are found to match it; None if there is no checkpoint yet."""
        if not (self.checkpoint.folder / INDEX).exists():
            self._check_never_saved()
            return None
        index = read_index(self.checkpoint.folder)
        for name, ledger in self._ledgers.items():
            if name in index.get("records", {}):
                ledger.check(index["round"], index["records"][name])
        return index

    def _check_never_saved(self) -> None:
        """Refuse a run with rounds but no checkpoint: resuming would start it again and drop them."""
        rounds = max(sum(1 for _ in ledger.rounds()) for ledger in self._ledgers.values())
        left = {path.name for path in self.checkpoint.folder.glob("*.safetensors") if of_checkpoint(path.name)}
        if rounds or left - {"state-0.safetensors"}:
            raise CounterpoiseError(
                f"{self.path} has lost its checkpoint: its record ends with round {rounds}, and "
                f"{self.checkpoint.folder / INDEX} is missing. Put a copy of it back, or start the run again in "
                "another folder."
            )

    def records(self) -> Iterator[RoundRecord]:
        """Every round that both ledgers hold completely."""
        for metrics, clients in zip(self.metrics.rounds(), self.clients.rounds(), strict=False):
            yield record(metrics, clients, str(self.path))


def _check_free(path: Path) -> None:
    """Refuse a folder that is not empty, unless it holds only what a run leaves behind if it is killed as it begins."""
    if os.path.lexists(path / CONFIG):
        raise CounterpoiseError(f"{path} already holds a run. {_how_to_go_on(path)}")
    if path.is_dir() and not all(map(never_begun, path.iterdir())):
        raise CounterpoiseError(f"The folder {path} is not empty. Choose another one for the run.")


def _how_to_go_on(path: Path) -> str:
    """How to continue a run that has begun, or why it cannot be continued."""
    try:
        folder = Folder.open(path)
        folder.checked_index()
    except CounterpoiseError as error:
        return f"It cannot be continued as it is: {error} For a new run, choose another folder."
    how = folder.how_to_resume if folder.config.asked_for else f"'{folder.how_to_resume}'"
    return f"Continue it with {how}, or choose another folder."


def never_begun(path: Path) -> bool:
    """Whether a file is one that a run leaves behind if it is killed while its folder is being made."""
    if path.is_symlink() or not path.is_file():
        return False
    if path.name in (METRICS, CLIENTS):
        return is_empty(path)
    return path.name == LOCK or is_partial(path.name, of_run)


def _metrics_line(record: RoundRecord) -> dict[str, Any]:
    return {
        "round": record.round,
        **{name: value if math.isfinite(value) else None for name, value in record.metrics.items()},
        "seconds": round(record.seconds, 6),
        "bytes_up": record.bytes_up,
        "bytes_down": record.bytes_down,
        "bytes_server": record.bytes_server,
        "bytes_clients": record.bytes_clients,
        "memory": record.memory,
        **({"facts": dict(record.outcome.facts)} if record.outcome.facts else {}),
        **({"skipped": record.outcome.skipped} if record.outcome.skipped else {}),
    }


def _clients_line(record: RoundRecord) -> dict[str, Any]:
    outcome = record.outcome
    return {
        "round": record.round,
        "cohort": record.cohort,
        "claims": {c: v if math.isfinite(v) else None for c, v in outcome.claims.items()},
        "weights": outcome.weights,
        "excluded": outcome.excluded,
        "notes": _finite(outcome.notes),
        **({"liars": record.liars} if record.liars else {}),
        **({"verdicts": {c: asdict(v) for c, v in outcome.verdicts.items()}} if outcome.verdicts else {}),
        "metrics": _finite(record.clients),
    }


def _finite(named: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, float | None]]:
    """JSON has no NaN or infinity: they become null."""
    return {n: {c: v if math.isfinite(v) else None for c, v in values.items()} for n, values in named.items()}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
