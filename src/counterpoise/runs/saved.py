"""Load a run from its folder, whatever its status.

Loading is lenient, unlike `resume`: an incomplete last line, a missing file or a line of an older schema only means
that some values are absent.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.errors import CounterpoiseError
from counterpoise.measures import summary
from counterpoise.measures.stopping import When
from counterpoise.registry import flatten
from counterpoise.runs.companions import noted_batches
from counterpoise.runs.contents import CLIENTS, CONFIG, FAILURE, HOLDINGS, INDEX, METRICS
from counterpoise.runs.ending import untrained
from counterpoise.runs.frames import frame
from counterpoise.runs.holdings import holdings
from counterpoise.runs.index import fingerprint, read_index
from counterpoise.runs.kept import STATUSES, Settings, checked, record
from counterpoise.runs.ledger import SCHEMA, digest_of
from counterpoise.runs.locks import abandoned
from counterpoise.texts import Malformed, counted, parse_json, parse_toml, read_lines, read_text

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

__all__ = ["INTERRUPTED", "UNREADABLE", "SavedRun", "load_run", "status_of", "unreadable_run"]

UNREADABLE = "unreadable"
"""The status of a run whose files cannot be read."""
INTERRUPTED = "interrupted"
"""The status of a run that was killed: it calls itself running, and no process has locked its folder."""

log = logging.getLogger(__name__)

_NOT_IDENTITY = re.compile(
    r"schema|seed|data\.(seed|fingerprint)|model\.fingerprint|objects\..*|engine\.(?!dtype|tf32).*"
)
"""Settings that may differ between the seeds of one experiment: the seed, what follows from it, digests of objects, and the engine."""


@dataclass(frozen=True, repr=False)
class SavedRun:
    """A run as tables and reports read it: loaded from its folder, or taken over from memory."""

    path: Path | None
    """Its folder; None if it is in memory alone."""
    settings: Mapping[str, Any]
    """Its configuration as plain values, in the schema it was written in."""
    records: Sequence[RoundRecord]
    status: str
    """finished, stopped, diverged, failed, unreadable, running, or interrupted: it never said how it ended, and no
    process is writing it"""
    sentence: str
    """Why it failed; empty if it did not."""
    changed: datetime.datetime
    """When its last round was written."""
    doubts: tuple[str, ...] = ()
    """What is wrong with its files, one sentence each: altered numbers, missing files."""
    held: Mapping[str, Any] | None = None
    """Who holds which data, if the run is in memory alone; otherwise `holdings` reads it from the folder."""
    why: str = ""
    """Why its rule (`stop`) ended it before its last round; empty if it did not."""

    def __repr__(self) -> str:
        done = f"{len(self.records)} of {counted(self.rounds, 'round')}"
        return f"SavedRun({self.method} on {self.data}, seed {self.seed}, {done}, {self.status})"

    @property
    def method(self) -> str:
        choice = self.settings.get("method", {})
        return str(choice.get("called") or choice.get("name", "unknown") if isinstance(choice, Mapping) else choice)

    @property
    def data(self) -> str:
        choice = self.settings.get("data", {})
        return str(choice.get("name", "unknown") if isinstance(choice, Mapping) else choice)

    @property
    def seed(self) -> int:
        return int(self.settings.get("seed", 0))

    @property
    def rounds(self) -> int:
        """How many rounds it was asked for; `records` holds those it has done."""
        return int(self.settings.get("rounds", 0))

    @functools.cached_property
    def holdings(self) -> Mapping[str, Any] | None:
        """Who holds which data; None if that is not recorded."""
        return self.held if self.path is None else holdings(self.path)

    @functools.cached_property
    def batches(self) -> list[dict[str, Any]]:
        """The batches of runs that it trained in, each with its first round; empty if it was always alone."""
        return [] if self.path is None else noted_batches(self.path)

    @property
    def client_names(self) -> list[str] | None:
        """What clients are called, if they have names."""
        return (self.holdings or {}).get("client_names")

    def name_of(self, client: int) -> str:
        """A client's name, or its number if it has none."""
        names = self.client_names or ()
        return names[client] if client < len(names) else str(client)

    @property
    def true_counts(self) -> dict[int, float] | None:
        """How many samples each client truly trains on; None if that is not recorded."""
        sizes = (self.holdings or {}).get("sizes")
        return dict(enumerate(sizes)) if isinstance(sizes, list) else None

    @property
    def failed(self) -> bool:
        return bool(self.sentence)

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that all seeds of one experiment share, with dotted keys for tables."""
        return {key: value for key, value in flatten(self.settings).items() if not _NOT_IDENTITY.fullmatch(key)}

    def measures(self, metric: str = "accuracy", target: float | None = None, lower: bool = False) -> dict[str, Any]:
        """Every measure of the run, as `counterpoise.measures.summary` gives them."""
        truth = self.true_counts is not None or any(record.liars for record in self.records)
        return summary(self.records, metric, target, lower, self.true_counts, truth)

    def frame(self, of: str = "rounds") -> pd.DataFrame:
        """As `counterpoise.Run.frame`."""
        return frame(self.records, of, self.client_names, method=self.method, seed=self.seed)

    def plot(self, metric: str | None = None, against: str = "rounds") -> go.Figure:
        """As `counterpoise.Run.plot`."""
        from counterpoise.runs.plots import plot_curves

        return plot_curves([(self.method, [self.records])], metric, against)

    def _repr_html_(self) -> str:
        from counterpoise.runs.pictures import run_html

        return run_html(self.method, self.seed, self.status, self.records, self.path, self.why, self.sentence)


def load_run(path: Path, settings: Mapping[str, Any] | None = None) -> SavedRun:
    """Load a run from its folder; `settings` replace the configuration of a run that failed before it wrote one."""
    config = path / CONFIG
    try:
        if settings is None or config.exists():
            settings = parse_toml(read_text(config), str(config))
    except FileNotFoundError:
        settings = {}
    checked(Settings, dict(settings), str(config))
    status = _status(path)  # before the rounds are read: a run that ends meanwhile is not taken for a killed one
    written = list(_records(path))
    records = _believed(path, written, status)
    doubts = (*_doubts(path, len(records), status), *_too_many(path, len(written), len(records), settings))
    for doubt in doubts:
        _warn(doubt)
    short = status == "finished" and len(records) < int(settings.get("rounds", 0))
    why = _why(settings, records) if short else ""
    if short and not why:
        status = "stopped"  # its last lines are incomplete, so its last round is unknown
    if status == "finished" and untrained(records):
        status = "failed"
    sentence = _sentence(path, status, records)
    return SavedRun(path, settings, records, status, sentence, _changed(path), doubts, why=why)


def _why(settings: Mapping[str, Any], records: Sequence[RoundRecord]) -> str:
    """Why the run's own rule ended it after its last round; empty if it did not."""
    with contextlib.suppress(CounterpoiseError, TypeError):
        return When(**settings["stop"]).reason(records) if "stop" in settings else ""
    return ""


def unreadable_run(path: Path, why: str) -> SavedRun:
    """A stand-in for a run that cannot be read."""
    return SavedRun(path, {}, (), UNREADABLE, why, _changed(path))


def _believed(path: Path, written: Sequence[RoundRecord], status: str) -> list[RoundRecord]:
    """Rounds 1, 2, 3 and so on; if the run has ended, only those that its checkpoint counts."""
    in_order = [record for place, record in enumerate(written, 1) if record.round == place]
    with contextlib.suppress(CounterpoiseError):
        if status not in ("running", INTERRUPTED):
            return in_order[: read_index(path / "checkpoint")["round"]]
    return in_order


def _too_many(path: Path, written: int, believed: int, settings: Mapping[str, Any]) -> Iterator[str]:
    if written > believed:
        yield f"{path / METRICS} holds {counted(written, 'round')}, and the run has {believed}: the others are left out."
    if believed > int(settings.get("rounds", believed)):
        yield f"{path / CONFIG} asks for fewer rounds than the run's {believed}: it is not what was written."


def _doubts(path: Path, rounds: int, status: str) -> Iterator[str]:
    """What is wrong with a run's files, one sentence each: a bad index, or rounds that no digest of it covers."""
    place = path / "checkpoint" / INDEX
    if not place.exists():
        if rounds:
            yield f"{place} is missing: how this run ended is not known, and it cannot be resumed."
        return
    try:
        index = read_index(place.parent)
    except CounterpoiseError as error:
        yield str(error)
        return
    kept = {CONFIG: index["run"], **index.get("records", {})}
    for name in (CONFIG, METRICS, CLIENTS, HOLDINGS):
        if name in kept and _digest(path / name, index["round"]) != kept[name]:
            how = "is not what was written" if (path / name).exists() else "is missing"
            yield f"{path / name} {how}: this run's numbers may be wrong."
    if status == INTERRUPTED and rounds > index["round"]:
        yield (
            f"{path} was interrupted, and its rounds after {index['round']} were written after its last checkpoint: "
            "they cannot be checked, and `counterpoise resume` runs them again."
        )


def _digest(path: Path, rounds: int) -> str:
    """The digest that a checkpoint's index would hold for a file; empty if the file cannot be read."""
    with contextlib.suppress(CounterpoiseError, OSError):
        if path.name == CONFIG:
            return fingerprint(parse_toml(read_text(path), str(path)))
        return digest_of(path, rounds)
    return ""


@functools.cache  # warn once, even if a command reads a run several times
def _warn(sentence: str) -> None:
    log.warning("%s", sentence)


def _records(path: Path) -> Iterator[RoundRecord]:
    clients = {line["round"]: line for line in _lines(path / "clients.jsonl")}
    for line in _lines(path / "metrics.jsonl"):
        yield record(line, clients.get(line["round"], {"round": line["round"]}), str(path))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The rounds of a file up to the first incomplete line."""
    try:
        for line in read_lines(path):
            value = parse_json(line, str(path))
            if not isinstance(value, dict):
                return
            schema = value.get("schema", 0)
            if type(schema) is not int or type(value.get("round", 0)) is not int:
                raise CounterpoiseError(f"{path} is damaged: a schema or round in it is not a whole number.")
            if schema > SCHEMA:
                raise CounterpoiseError(f"{path} was written by a newer version of counterpoise. Upgrade counterpoise.")
            if "round" in value:
                yield value
    except (FileNotFoundError, Malformed):
        return


def status_of(path: Path) -> str:
    """The status in a run's files. A run that was killed still says that it is running."""
    index = path / "checkpoint" / "checkpoint.json"
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, Malformed):
        found = parse_json(read_text(index), str(index))
        if isinstance(found, dict) and found.get("status") in STATUSES:
            return str(found["status"])
    return "failed" if (path / FAILURE).exists() else "running"


def _status(path: Path) -> str:
    status = status_of(path)
    return INTERRUPTED if status == "running" and abandoned(path) else status


def _sentence(path: Path, status: str, records: Sequence[RoundRecord]) -> str:
    try:
        return read_text(path / FAILURE).partition("\n")[0]
    except (FileNotFoundError, NotADirectoryError):
        if status not in ("diverged", "failed"):
            return ""
        return (untrained(records) if status == "failed" else "") or f"It {status} after round {len(records)}."


def _changed(path: Path) -> datetime.datetime:
    places = (path / name for name in ("metrics.jsonl", CONFIG, FAILURE, "."))
    return datetime.datetime.fromtimestamp(next(p for p in places if p.exists()).stat().st_mtime).astimezone()
