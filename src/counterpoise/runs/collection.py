"""Runs on disk: found, read however they ended, and named apart.

A run's folder is any that holds a ``config.toml`` of a run. A comparison's folder holds ``compare.toml`` (its plan, see
`counterpoise.runs.plan`) and a run's folder for each of its arms and seeds, ``<arm>/seed-<n>``; a run that failed has
its sentence there in ``failure.txt``.

Reading is forgiving, unlike `resume`: a torn last line, a file that is missing and lines of an older
schema leave out what they do not hold.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.errors import CounterpoiseError
from counterpoise.measures import has_personal, own_curve, summary
from counterpoise.registry import flatten
from counterpoise.runs.checkpoint import read_index
from counterpoise.runs.contents import CLIENTS, CONFIG, FAILURE, HOLDINGS, INDEX, METRICS
from counterpoise.runs.ending import untrained
from counterpoise.runs.folder import SCHEMA, fingerprint
from counterpoise.runs.frames import frame
from counterpoise.runs.holdings import true_counts
from counterpoise.runs.kept import STATUSES, Settings, checked, record
from counterpoise.runs.ledger import digest_of
from counterpoise.runs.plan import COMPARISON, Plan, read_plan
from counterpoise.texts import Malformed, parse_json, parse_toml, read_lines, read_text

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "FAILURE",
    "UNREADABLE",
    "Group",
    "Kept",
    "collect",
    "groups",
    "labels",
    "of_plan",
    "read_or_tell",
    "read_run",
    "run_folders",
    "status_of",
    "told",
]

UNREADABLE = "unreadable"
"""The status of a run whose files cannot be read."""

log = logging.getLogger(__name__)

_NOT_IDENTITY = re.compile(r"schema|seed|data\.(seed|fingerprint)|model\.fingerprint|engine\.(?!dtype|tf32).*")
"""Settings in which two runs of one thing may differ: the seed and what follows from it, and how the work was done."""


@dataclass(frozen=True)
class Kept:
    """A run as its folder tells it."""

    path: Path
    settings: Mapping[str, Any]
    """Its configuration, as plain values; of an older schema as it was then."""
    records: Sequence[RoundRecord]
    status: str
    """finished, stopped, diverged, failed, unreadable, or running (which a run that was killed also says)"""
    sentence: str
    """Why it failed; empty where it did not."""
    changed: datetime.datetime
    """When its last round was written."""
    doubts: tuple[str, ...] = ()
    """What is wrong with its files, in a sentence each: numbers that were altered, files that are missing."""

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
        """How many it was made for; its records are those it has done."""
        return int(self.settings.get("rounds", 0))

    @property
    def failed(self) -> bool:
        return bool(self.sentence)

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that all seeds of one thing share, with dots into tables."""
        return {key: value for key, value in flatten(self.settings).items() if not _NOT_IDENTITY.fullmatch(key)}

    def measures(self, metric: str = "accuracy", target: float | None = None, lower: bool = False) -> dict[str, Any]:
        """Every measure of it, as `counterpoise.measures.summary` has them."""
        return summary(self.records, metric, target, lower, true_counts(self.path))

    def frame(self, of: str = "rounds") -> pd.DataFrame:
        """As `counterpoise.Run.frame`."""
        return frame(self.records, of, method=self.method, seed=self.seed)


@dataclass(frozen=True)
class Group:
    """The runs of one thing, one for each seed."""

    label: str
    runs: tuple[Kept, ...]

    @property
    def done(self) -> dict[int, Kept]:
        """By seed, those that went all their rounds."""
        return {run.seed: run for run in self.runs if run.status == "finished"}

    @property
    def sentence(self) -> str:
        """Why its first run that failed did; empty where none did."""
        return next((run.sentence for run in self.runs if run.failed), "")


def run_folders(folders: Iterable[str | Path]) -> list[Path]:
    """Every run's folder in these, themselves included, at any depth; in order of their names."""
    found: dict[Path, None] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise CounterpoiseError(f"There is no folder {folder}.")
        inside = (path.parent for name in (CONFIG, FAILURE) for path in folder.rglob(name))
        found |= dict.fromkeys(sorted(set(inside), key=lambda path: _natural(str(path))))
    return list(found)


def _natural(text: str) -> list[tuple[int, str]]:
    """A key that puts seed-10 behind seed-9."""
    return [(int(part or 0), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def read_run(path: Path, settings: Mapping[str, Any] | None = None) -> Kept:
    """A run from its folder; `settings` stand in for those of one that failed before it wrote them."""
    config = path / CONFIG
    try:
        if settings is None or config.exists():
            settings = parse_toml(read_text(config), str(config))
    except FileNotFoundError:
        settings = _planned(path)
    checked(Settings, dict(settings), str(config))
    records = list(_records(path))
    doubts = tuple(_doubts(path, bool(records)))
    for doubt in doubts:
        _warn(doubt)
    status = status_of(path)
    if status == "finished" and len(records) < int(settings.get("rounds", 0)):
        status = "stopped"  # its last lines are torn, so its last round is not known
    if status == "finished" and untrained(records):
        status = "failed"
    return Kept(path, settings, records, status, _sentence(path, status, records), _changed(path), doubts)


def read_or_tell(path: Path) -> Kept:
    """A run from its folder; of one that cannot be read, where it is and why."""
    try:
        return read_run(path)
    except CounterpoiseError as error:
        why = str(error)
    except OSError as error:
        why = f"{path} cannot be read: {error.strerror or error}."
    return Kept(path, {}, (), UNREADABLE, why, _changed(path))


def _doubts(path: Path, begun: bool) -> Iterator[str]:
    """What is wrong with a run's files, in a sentence each: its checkpoint's index, or what differs from its digests."""
    place = path / "checkpoint" / INDEX
    if not place.exists():
        if begun:
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
            yield f"{path / name} {how}: what is told of this run may be wrong."


def _digest(path: Path, rounds: int) -> str:
    """What an index would keep of a file; empty if it cannot be read."""
    with contextlib.suppress(CounterpoiseError, OSError):
        if path.name == CONFIG:
            return fingerprint(parse_toml(read_text(path), str(path)))
        return digest_of(path, rounds)
    return ""


@functools.cache  # a command may read a run more than once
def _warn(sentence: str) -> None:
    log.warning("%s", sentence)


def _planned(path: Path) -> Mapping[str, Any]:
    """What a comparison meant for a run that failed before it wrote its configuration."""
    folder = path.parent.parent
    if not (folder / COMPARISON).exists():
        return {}
    plan = read_plan(folder)
    pieces = (piece for arm in plan.arms for piece in plan.pieces(arm))
    return next((piece.values for piece in pieces if folder / piece.place == path), {})


def _records(path: Path) -> Iterator[RoundRecord]:
    clients = {line["round"]: line for line in _lines(path / "clients.jsonl")}
    for line in _lines(path / "metrics.jsonl"):
        yield record(line, clients.get(line["round"], {"round": line["round"]}), str(path))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The rounds of a file up to the first that is torn."""
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


def told(record: RoundRecord) -> dict[str, float]:
    """A round's metrics for a board: on the test set, and the mean over clients by the model that each would use.

    The latter is ``personal_...`` if the method makes personal models, ``own_...`` if it is the server's.
    """
    means: dict[str, float] = {}
    for metric in {name.removeprefix("personal_") for name in record.clients}:
        kind = "personal" if has_personal([record], metric) else "own"
        means |= {f"{kind}_{metric}": value for _, value in own_curve([record], metric)}
    return {**record.metrics, **means}


def status_of(path: Path) -> str:
    """How a run ended, in the words of `Kept.status`."""
    index = path / "checkpoint" / "checkpoint.json"
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, Malformed):
        found = parse_json(read_text(index), str(index))
        if isinstance(found, dict) and found.get("status") in STATUSES:
            return str(found["status"])
    return "failed" if (path / FAILURE).exists() else "running"


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


_NAMES = ("method.called", "method.name", "method")


def labels(identities: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each: its method, and where that is not enough the settings in which it differs.

    >>> labels([{"method.name": "fedavg"}, {"method.name": "fedprox", "method.mu": 1}, {"method.name": "fedprox", "method.mu": 2}])
    ['fedavg', 'fedprox(mu=1)', 'fedprox(mu=2)']
    """
    names = [str(next((one[key] for key in _NAMES if key in one), "unknown")) for one in identities]
    found: list[str] = []
    for name, one in zip(names, identities, strict=True):
        like = [other for other, its in zip(identities, names, strict=True) if its == name]
        keys = dict.fromkeys(key for other in like for key in other)
        apart = [key for key in keys if any(other.get(key) != like[0].get(key) for other in like)]
        apart.sort(key=lambda key: not key.startswith("method."))
        shown = [f"{key.removeprefix('method.')}={one[key]}" for key in apart if key in one]
        found.append(f"{name}({', '.join(shown)})" if shown else name)
    return found


def groups(runs: Iterable[Kept]) -> list[Group]:
    """Runs by what they are of, with a label each: fedavg first, then by name.

    Of two runs of one thing with one seed the later counts.
    """
    things: dict[str, dict[int, Kept]] = {}
    for run in sorted(runs, key=lambda run: run.changed):
        things.setdefault(json.dumps(run.identity, sort_keys=True, default=str), {})[run.seed] = run
    found = [tuple(run for _, run in sorted(seeds.items())) for seeds in things.values()]
    named = zip(labels([seeds[0].identity for seeds in found]), found, strict=True)
    return [Group(*pair) for pair in sorted(named, key=lambda pair: (pair[1][0].method != "fedavg", _natural(pair[0])))]


def collect(folders: Iterable[str | Path]) -> list[Group]:
    """The groups of all runs in these folders; those of one comparison as its plan orders and names them."""
    places = [Path(folder) for folder in folders]
    if len(places) == 1 and (places[0] / COMPARISON).exists():
        return of_plan(places[0], read_plan(places[0]))
    return groups(map(read_run, run_folders(places)))


def of_plan(folder: Path, plan: Plan) -> list[Group]:
    """The groups of a comparison, those that have not begun without a run."""
    return [
        Group(
            arm.label,
            tuple(
                read_run(folder / piece.place, piece.values)
                for piece in plan.pieces(arm)
                if _begun(folder / piece.place)
            ),
        )
        for arm in plan.arms
    ]


def _begun(path: Path) -> bool:
    return (path / CONFIG).exists() or (path / FAILURE).exists()
