"""What was compared, in one line: seeds, rounds, clients, model, data and how it was dealt, and who lied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from counterpoise.charts.style import elided
from counterpoise.registry import flatten
from counterpoise.reports.study import Study
from counterpoise.runs.config import OWN
from counterpoise.runs.saved import SavedRun

__all__ = ["facts"]

_SELF_EVIDENT = ("name", "clients", "minimum", "seed")
"""Options of a partition that the line leaves out, or names elsewhere."""


def facts(found: Study) -> str:
    """The line below the answer."""
    runs = [run for group in found.groups for run in group.runs]
    word = found.plan.arm_word if found.plan else "method"
    said = [
        _counted(len(found.groups), word) if len(found.groups) > 1 else "",
        _counted(len({run.seed for run in runs}), "seed"),
        _counted(max(len(run.records) for run in runs), "round"),
        _each(runs, _clients),
        f"{_each(runs, lambda run: _name(run, 'model'))} on {_each(runs, lambda run: _name(run, 'data'))}",
        _each(runs, _dealt),
        _each(runs, _lying),
    ]
    return "; ".join(filter(None, said)) + "."


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _each(runs: Iterable[SavedRun], text: Callable[[SavedRun], str], most: int = 3) -> str:
    """What the runs have, each once; a count if that would be many."""
    found = [one for one in dict.fromkeys(map(text, runs)) if one]
    return " and ".join(found) if len(found) <= most else f"{' and '.join(found[:most])} and {len(found) - most} more"


def _name(run: SavedRun, *keys: str) -> str:
    values = flatten(run.settings)
    found = str(values.get(".".join((*keys, "name")), values.get(".".join(keys))) or "not known")
    return f"own {keys[0]}" if found == OWN else elided(found)


def _clients(run: SavedRun) -> str:
    every, heard = flatten(run.settings).get("data.partition.clients"), run.settings.get("cohort")
    every = every if isinstance(every, int) else (run.holdings or {}).get("clients")
    if not every:
        return ""
    return f"{heard} of {every} clients a round" if isinstance(heard, int) and heard < every else f"{every} clients"


def _dealt(run: SavedRun) -> str:
    data = run.settings.get("data")
    partition = data.get("partition") if isinstance(data, Mapping) else None
    if not isinstance(partition, Mapping):
        return f"dealt by {elided(str(partition))}" if partition else ""
    options = [f"{key} {value}" for key, value in partition.items() if key not in _SELF_EVIDENT and _plain(value)]
    shown = f" ({', '.join(options[:3])})" if options else ""
    return elided(f"dealt by {partition.get('name', 'not known')}{shown}", 80)


def _plain(value: Any) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def _lying(run: SavedRun) -> str:
    found = run.settings.get("adversary") or []
    every = [
        one if isinstance(one, Mapping) else {"name": one} for one in (found if isinstance(found, list) else [found])
    ]
    return elided(", ".join(map(_liar, every)), 80)


def _liar(one: Mapping[str, Any]) -> str:
    """How many lie and how; when, only if not always."""
    many, share = one.get("clients"), one.get("fraction")
    who = _counted(len(many) if isinstance(many, list) else many, "liar") if many else "liars"
    always = {"often": 1, "first": 1}
    how = [
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in one.items()
        if key not in ("name", "clients", "fraction") and _plain(value) and always.get(key) != value
    ]
    return f"{f'{share:.0%} liars' if share else who} ({', '.join([str(one.get('name')), *how[:2]])})"
