"""What was compared, in one line: seeds, rounds, clients, model, data and how it was dealt, and who lied."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def _each(runs: Iterable[SavedRun], text: Callable[[SavedRun], str]) -> str:
    """What the runs have, each once."""
    return _merged([one for one in dict.fromkeys(map(text, runs)) if one])


def _merged(texts: Sequence[str], most: int = 3) -> str:
    """Texts in a row, with what they share at their beginnings and ends only once; of many, the first and a count.

    >>> _merged([f"dealt by dirichlet (alpha {x})" for x in (0.1, 0.5, 5.0)]), _merged(["5 of 9", "7 of 9", "8 of 9"], 1)
    ('dealt by dirichlet (alpha 0.1, 0.5 and 5.0)', '5 and 2 more of 9')
    >>> _merged(["by lq (labels 2)", "by iid"]), _merged(["by lq (labels 2)", "by dirichlet (alpha 1)"])
    ('by lq (labels 2) and iid', 'by lq (labels 2) and by dirichlet (alpha 1)')
    >>> _merged(["cnn", "mlp"]), _merged(["a b", "a"]), _merged(["a"]), _merged([])
    ('cnn and mlp', 'a b and a', 'a', '')
    """
    pieces = [re.findall(r"[\w.]+|[^\w.]+", text) for text in texts]
    before, after = _shared(pieces), _shared([piece[::-1] for piece in pieces])
    apart = ["".join(piece[before : len(piece) - after]) for piece in pieces]
    if not all(one and one.count("(") == one.count(")") for one in apart):
        before, after, apart = 0, 0, list(texts)
    shown = apart if len(apart) <= most else [*apart[:most], f"{len(apart) - most} more"]
    every = " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))
    first = pieces[0] if pieces else []
    return "".join([*first[:before], every, *first[len(first) - after :]])


def _shared(pieces: Sequence[Sequence[str]]) -> int:
    """How many of their first pieces all have in common."""
    return next((i for i, each in enumerate(zip(*pieces, strict=False)) if len({*each}) > 1), 0)


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
