"""A run's folder: ``config.toml``, ``metrics.jsonl``, ``clients.jsonl``, ``federation.json`` and the checkpoint.

Both ``.jsonl`` files begin with a line that holds their schema and then have one line a round.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from counterpoise.engine.simulation import RoundRecord, Simulation
from counterpoise.errors import CounterpoiseError
from counterpoise.runs.checkpoint import Checkpoint
from counterpoise.runs.config import Config, parse
from counterpoise.runs.files import append_line, push, read_lines, replace_text
from counterpoise.runs.holdings import HOLDINGS
from counterpoise.runs.kept import record
from counterpoise.texts import parse_toml, read_text

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

__all__ = ["SCHEMA", "Folder"]

SCHEMA = 1


class Folder:
    """Where a run is kept."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path, self.config = path, config
        self.checkpoint = Checkpoint(path / "checkpoint", _fingerprint(config))
        self.written = 0
        """The last round that both files hold."""

    @classmethod
    def create(cls, path: Path, config: Config) -> Folder:
        """A new folder for a run; one that already holds a run is left alone."""
        if (path / "config.toml").exists():
            raise CounterpoiseError(
                f"{path} already holds a run. Continue it with 'counterpoise resume {path}', or choose another folder."
            )
        if path.is_dir() and any(path.iterdir()):
            raise CounterpoiseError(f"The folder {path} is not empty. Choose another one for the run.")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CounterpoiseError(f"The folder {path} cannot be made: {error.strerror or error}.") from error
        folder = cls(path, config)
        for file in (folder.metrics, folder.clients):
            _rewrite(file, ())
        folder.write_config()
        return folder

    @classmethod
    def open(cls, path: Path) -> Folder:
        """The folder of an earlier run."""
        try:
            values = parse_toml(read_text(path / "config.toml"), str(path / "config.toml"))
        except (FileNotFoundError, NotADirectoryError):
            raise CounterpoiseError(f"{path} holds no run: there is no config.toml in it.") from None
        return cls(path, parse(values, str(path / "config.toml")))

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def clients(self) -> Path:
        return self.path / "clients.jsonl"

    def write_config(self) -> None:
        replace_text(self.path / "config.toml", tomli_w.dumps(self.config.plain()))

    def write_holdings(self, found: Mapping[str, Any]) -> None:
        """Keep who holds what, as `counterpoise.federation.overview.holdings` has it."""
        replace_text(self.path / HOLDINGS, json.dumps({"schema": SCHEMA, **found}, separators=(",", ":")) + "\n")

    def extend(self, rounds: int) -> None:
        """Ask for another number of rounds; everything else stays what it was."""
        self.config = self.config.model_copy(update={"rounds": rounds})
        self.write_config()

    def append(self, record: RoundRecord) -> None:
        append_line(self.metrics, _metrics_line(record))
        append_line(self.clients, _clients_line(record))
        self.written = record.round

    def save(self, simulation: Simulation, status: str) -> None:
        """Write a checkpoint, after pushing the lines it counts on to the disk."""
        push(self.metrics)
        push(self.clients)
        self.checkpoint.save(simulation, status)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one process at a time, where the system can."""
        if fcntl is None:
            yield
            return
        with open(self.metrics.with_name(".lock"), "wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise CounterpoiseError(f"Another process is running the run in {self.path}.") from None
            yield

    def restore(self, simulation: Simulation, writes: bool = True) -> tuple[list[RoundRecord], str]:
        """Bring a simulation, and if this process `writes` both files, back to the checkpoint; later lines are dropped.

        A run that was killed before its first checkpoint goes back to its beginning.
        """
        status = "running"
        if (self.checkpoint.folder / "checkpoint.json").exists():
            status = self.checkpoint.load(simulation)["status"]
        records = [record for record in self.records() if record.round <= simulation.round]
        if [record.round for record in records] != list(range(1, simulation.round + 1)):
            raise CounterpoiseError(
                f"{self.path} has lost rounds that its checkpoint counts; its metrics.jsonl or clients.jsonl is not whole."
            )
        if writes:
            _rewrite(self.metrics, map(_metrics_line, records))
            _rewrite(self.clients, map(_clients_line, records))
        simulation.recall(records)
        self.written = simulation.round
        return records, status

    def records(self) -> Iterator[RoundRecord]:
        """Every round that both files hold whole."""
        for metrics, clients in zip(_body(self.metrics), _body(self.clients), strict=False):
            yield record(metrics, clients, str(self.path))


def _fingerprint(config: Config) -> str:
    """What a checkpoint must share with its configuration: everything but the number of rounds."""
    identity = {key: value for key, value in config.plain().items() if key != "rounds"}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _body(path: Path) -> Iterator[Any]:
    lines = read_lines(path)
    header: Any = next(lines, None)
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise CounterpoiseError(
            f"{path} does not begin with schema {SCHEMA}; it was not written by this version of counterpoise."
        )
    yield from lines


def _rewrite(path: Path, lines: Iterable[Any]) -> None:
    text = "".join(
        json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n" for line in ({"schema": SCHEMA}, *lines)
    )
    replace_text(path, text)


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
    """JSON has no NaN: what is not finite is null there."""
    return {n: {c: v if math.isfinite(v) else None for c, v in values.items()} for n, values in named.items()}
