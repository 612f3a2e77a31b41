"""Find saved runs, load them whatever their status, and label them distinctly.

A run's folder is any folder with a run's ``config.toml``. A comparison's folder holds its plan, ``compare.toml`` (see
`counterpoise.comparisons.plan`), and a run's folder for each arm and seed, ``<arm>/seed-<n>``. A run that failed says
why in ``failure.txt``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.comparisons.contents import COMPARISON
from counterpoise.comparisons.plan import Plan, read_plan
from counterpoise.errors import CounterpoiseError, no_folder
from counterpoise.runs.contents import CONFIG, FAILURE
from counterpoise.runs.saved import SavedRun, load_run, unreadable_run

__all__ = [
    "Group",
    "collect",
    "failures",
    "groups",
    "is_begun",
    "labels",
    "of_plan",
    "read_or_tell",
    "read_run",
    "run_folders",
]


@dataclass(frozen=True)
class Group:
    """The runs of one experiment, one for each seed."""

    label: str
    runs: tuple[SavedRun, ...]

    @property
    def done(self) -> dict[int, SavedRun]:
        """The finished runs, by seed."""
        return {run.seed: run for run in self.runs if run.status == "finished"}

    @property
    def sentence(self) -> str:
        """Why the first failed run failed; empty if none did."""
        return next((run.sentence for run in self.runs if run.failed), "")

    @property
    def failure(self) -> str:
        """The same with the file that says more, if there is one."""
        path = next((run.path for run in self.runs if run.failed), None)
        more = f" See {path / FAILURE}." if path is not None and (path / FAILURE).exists() else ""
        return self.sentence and self.sentence + more


def failures(failed: Mapping[str, str]) -> list[str]:
    """Why arms failed, given by their labels: each reason once, with the first file that says more.

    >>> failures({"a": "No data. See a/failure.txt.", "b": "No data. See b/failure.txt.", "c": "No disk."})
    ['a, b failed: No data. See a/failure.txt.', 'c failed: No disk.']
    """
    reasons: dict[str, list[str]] = {}
    for label, sentence in failed.items():
        reason = sentence.rpartition(" See ")[0] if sentence.endswith(f"{FAILURE}.") else sentence
        reasons.setdefault(reason, []).append(label)
    return [f"{', '.join(labels)} failed: {failed[labels[0]]}" for labels in reasons.values()]


def run_folders(folders: Iterable[str | Path]) -> list[Path]:
    """Every run's folder in these folders, at any depth and including themselves, in order of their names."""
    found: dict[Path, None] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise no_folder(folder)
        inside = (path.parent for name in (CONFIG, FAILURE) for path in folder.rglob(name))
        found |= dict.fromkeys(sorted(set(inside), key=lambda path: _natural(str(path))))
    return list(found)


def _natural(text: str) -> list[tuple[int, str]]:
    """A sort key that puts seed-10 after seed-9."""
    return [(int(part or 0), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def read_run(path: Path) -> SavedRun:
    """Load a run. If it failed before it wrote a configuration, its comparison's plan gives the settings."""
    return load_run(path, None if (path / CONFIG).exists() else _planned(path))


def read_or_tell(path: Path) -> SavedRun:
    """Load a run; if that fails, return a stand-in that says why."""
    try:
        return read_run(path)
    except CounterpoiseError as error:
        why = str(error)
    except OSError as error:
        why = f"{path} cannot be read: {error.strerror or error}."
    return unreadable_run(path, why)


def _planned(path: Path) -> Mapping[str, Any]:
    """The settings that a comparison planned for this folder; empty if there are none."""
    folder = path.parent.parent
    if not (folder / COMPARISON).exists():
        return {}
    plan = read_plan(folder)
    pieces = (piece for arm in plan.arms for piece in plan.pieces(arm))
    return next((piece.values for piece in pieces if folder / piece.place == path), {})


_NAMES = ("method.called", "method.name", "method")


def labels(identities: Sequence[Mapping[str, Any]]) -> list[str]:
    """A label for each: its method and, if several share that, the settings in which they differ.

    Options also tell a method apart from one that wraps it.

    >>> one, two = ({"method.name": "fedprox", "method.mu": mu} for mu in (1, 2))
    >>> labels([{"method.name": "fedavg"}, one, two])
    ['fedavg', 'fedprox(mu=1)', 'fedprox(mu=2)']
    >>> labels([one, {"method.name": "feddua:fedprox", "method.mu": 2}])
    ['fedprox(mu=1)', 'feddua:fedprox(mu=2)']
    """
    names = [str(next((one[key] for key in _NAMES if key in one), "unknown")) for one in identities]
    found: list[str] = []
    for name, one in zip(names, identities, strict=True):
        like = [other for other, its in zip(identities, names, strict=True) if its == name]
        keys = dict.fromkeys(key for other in like for key in other)
        inner = [other for other, its in zip(identities, names, strict=True) if _innermost(its) == _innermost(name)]
        apart = [
            key
            for key in keys
            if any(other.get(key) != like[0].get(key) for other in like)
            or (key in _options(one) and any(other.get(key, one[key]) != one[key] for other in inner))
        ]
        apart.sort(key=lambda key: not key.startswith("method."))
        shown = [f"{key.removeprefix('method.')}={one[key]}" for key in apart if key in one]
        found.append(f"{name}({', '.join(shown)})" if shown else name)
    return found


def _innermost(name: str) -> str:
    return name.rpartition(":")[2]


def _options(identity: Mapping[str, Any]) -> set[str]:
    """The keys of a method's options; none for a user's own method, which cannot be made from its name."""
    named = "method.called" not in identity
    return {key for key in identity if named and key.startswith("method.")} - {*_NAMES}


def groups(runs: Iterable[SavedRun]) -> list[Group]:
    """Group runs that differ only in the seed, and label the groups: fedavg first, then by name.

    If two runs of one group have the same seed, the later one counts.
    """
    things: dict[str, dict[int, SavedRun]] = {}
    for run in sorted(runs, key=lambda run: run.changed):
        things.setdefault(json.dumps(run.identity, sort_keys=True, default=str), {})[run.seed] = run
    found = [tuple(run for _, run in sorted(seeds.items())) for seeds in things.values()]
    named = zip(labels([seeds[0].identity for seeds in found]), found, strict=True)
    return [Group(*pair) for pair in sorted(named, key=lambda pair: (pair[1][0].method != "fedavg", _natural(pair[0])))]


def collect(folders: Iterable[str | Path]) -> list[Group]:
    """Group all runs in these folders. A single comparison's groups follow the order and labels of its plan."""
    places = [Path(folder) for folder in folders]
    if len(places) == 1 and (places[0] / COMPARISON).exists():
        return of_plan(places[0], read_plan(places[0]))
    return groups(map(read_run, run_folders(places)))


def of_plan(folder: Path, plan: Plan) -> list[Group]:
    """The groups of a comparison; an arm that has not begun has no runs."""
    return [
        Group(
            arm.label,
            tuple(
                load_run(folder / piece.place, piece.values)
                for piece in plan.pieces(arm)
                if is_begun(folder / piece.place)
            ),
        )
        for arm in plan.arms
    ]


def is_begun(path: Path) -> bool:
    """Whether a run's folder holds a run, or says why there is none."""
    return (path / CONFIG).exists() or (path / FAILURE).exists()
