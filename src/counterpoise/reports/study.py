"""What a report is about: the runs of each method, how charts show them, and what the page needs to know."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from counterpoise.charts.style import Look, elided, looks, words
from counterpoise.comparisons.arms import short_keys
from counterpoise.comparisons.collection import Group, collect
from counterpoise.comparisons.contents import COMPARISON
from counterpoise.comparisons.plan import Plan, read_plan
from counterpoise.comparisons.standing import Stand, stand, stand_of
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.errors import CounterpoiseError
from counterpoise.measures import (
    CLIENT,
    PERSONAL,
    Standing,
    has_personal,
    lower_is_better,
    metrics_of,
    on_shared_seeds,
    plain_name,
    usual_metric,
)
from counterpoise.registry import flatten
from counterpoise.runs.config import OWN
from counterpoise.runs.saved import SavedRun

__all__ = ["PERSONALS", "SERVERS", "Arm", "Study", "best_first", "liars", "study", "verdicts"]

SERVERS, PERSONALS = "the server's model", "personal models"
"""Whose models a chart shows, in the words of its switch."""


@dataclass(frozen=True)
class Arm:
    """One of the methods compared, as charts show it."""

    group: Group
    look: Look

    @property
    def label(self) -> str:
        return self.group.label

    @property
    def name(self) -> str:
        """The label for a chart."""
        return words(elided(self.label))

    @cached_property
    def runs(self) -> tuple[SavedRun, ...]:
        """The finished runs; if there are none, those with at least one round."""
        done = tuple(run for run in self.group.done.values() if run.records)
        return done or tuple(run for run in self.group.runs if run.records)


@dataclass(frozen=True)
class Study:
    """Everything that a report is made from."""

    folders: tuple[Path, ...]
    groups: tuple[Group, ...]
    plan: Plan | None
    asked: str = ""
    """The metric by which methods are compared, if the user names one; ``client_...`` and ``personal_...`` included."""

    @cached_property
    def standing(self) -> Stand:
        """Methods against the plan's baseline; the settings of a sweep against the best."""
        if self.plan is None:
            return stand(self.groups, metric=self.asked)
        return stand_of(self.groups, self.plan.baseline, "the best", self.asked)

    @cached_property
    def order(self) -> list[int]:
        """The places of the groups, the best first."""
        return best_first(self.standing.own if self.personal_first else self.standing.rows, self.standing.lower)

    @cached_property
    def arms(self) -> tuple[Arm, ...]:
        """The methods with something to show, the best first; a colour follows the place in the plan."""
        every = [Arm(self.groups[place], one) for place, one in zip(self.order, looks(self.order), strict=True)]
        return tuple(arm for arm in every if arm.runs)

    @property
    def alone(self) -> bool:
        """Whether there is nothing to compare."""
        return len(self.groups) == 1

    @property
    def single(self) -> bool:
        """Whether there is only one run, which is one dot in a chart of seeds."""
        return self.alone and len(self.seeds) < 2

    @cached_property
    def swept(self) -> dict[str, dict[str, Any]]:
        """Of a sweep: the settings of each group, by label."""
        arms = self.plan.arms if self.plan and self.plan.kind == "sweep" else ()
        return {arm.label: flatten(arm.settings) for arm in arms}

    @cached_property
    def keys(self) -> dict[str, str]:
        """What a sweep's settings are called, as in its labels: ``mu`` for ``method.mu``, unless that is ambiguous."""
        whole = dict.fromkeys(key for values in self.swept.values() for key in values)
        methods = [run.settings.get("method") for group in self.groups for run in group.runs]
        short = short_keys((key.removesuffix(".name") for key in whole), methods)
        return {key: short[key.removesuffix(".name")] for key in whole}

    @cached_property
    def seeds(self) -> list[int]:
        return sorted({run.seed for arm in self.arms for run in arm.runs})

    @cached_property
    def metrics(self) -> list[str]:
        """What was measured on the test set, accuracy first."""
        found = {name for arm in self.arms for run in arm.runs for record in run.records for name in record.metrics}
        order = {"accuracy": 0, "loss": 2, "train_loss": 3}
        return sorted(found, key=lambda name: (order.get(name, 1), name))

    @property
    def metric(self) -> str:
        """The metric of the charts, which show personal models beside the server's."""
        if self.asked:
            return plain_name(self.asked)
        records = (record for arm in self.arms for run in arm.runs for record in run.records)
        return usual_metric(metrics_of(records))

    @property
    def views(self) -> dict[str, str]:
        """Whose models charts show, each with its metric by name; first those by which methods are compared.

        The server's model is measured on the test set, or without one on the clients' held-out data.
        """
        server = {SERVERS: self.metric if self.metric in self.metrics else CLIENT + self.metric}
        own = {PERSONALS: PERSONAL + self.metric} if self.personal else {}
        first = self.standing.metric.startswith(PERSONAL) or self.personal_first
        return own | server if first else server | own

    @cached_property
    def personal_first(self) -> bool:
        """Whether the methods differ only by their personal models: the server's are level."""
        means = [row.mean for row in self.standing.rows]
        return bool(self.standing.own) and len(means) > 1 and all(mean == means[0] for mean in means)

    @property
    def lower(self) -> bool:
        """Whether lower is better."""
        return lower_is_better(self.metric)

    @cached_property
    def personal(self) -> bool:
        """Whether personal models were measured."""
        return any(has_personal(run.records, self.metric) for arm in self.arms for run in arm.runs)

    @property
    def title(self) -> str:
        data = sorted({_data(run) for group in self.groups for run in group.runs})
        where = f"on {' and '.join(data)}"
        methods = sorted({run.method for group in self.groups for run in group.runs})
        if self.swept:
            by = [name for name in self.keys.values() if name != "method"]  # they are named already
            return f"{_list(methods)} {where}" + (f", by {_list(by, 'settings')}" if by else "")
        return f"{_list([group.label for group in self.groups])} {where}"


def _data(run: SavedRun) -> str:
    """What a run's data is called; a user's own has no name, but its clients may have."""
    if run.data != OWN:
        return run.data
    return f"own data of {_list(run.client_names, 'clients')}" if run.client_names else "own data"


def best_first(rows: Sequence[Standing], lower: bool) -> list[int]:
    """The places of the rows, the best first over the seeds that all have; those without a result come last."""
    means = [row.mean if lower else -row.mean for row in on_shared_seeds(rows)]
    return sorted(range(len(means)), key=lambda place: means[place] if math.isfinite(means[place]) else math.inf)


def _list(names: Sequence[str], what: str = "methods", most: int = 4) -> str:
    if len(names) > most:
        return f"{len(names)} {what}"
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def study(folders: Iterable[str | Path], metric: str = "") -> Study:
    """The runs in these folders, compared by a metric. A folder without any is a mistake."""
    places = tuple(map(Path, folders))
    groups = tuple(collect(places))
    if not any(group.runs for group in groups):
        named = ", ".join(map(str, places)) or "no folder"
        raise CounterpoiseError(f"There is no run in {named}. Make one with: counterpoise run quickstart")
    plan = read_plan(places[0]) if len(places) == 1 and (places[0] / COMPARISON).exists() else None
    return Study(places, groups, plan, metric)


def verdicts(records: Iterable[RoundRecord]) -> list[dict[str, Any]]:
    """Every verdict of a run as a row, as `Run.verdicts` has them."""
    return [
        {"round": record.round, "client": client, "judged": verdict.judged} | vars(verdict)
        for record in records
        for client, verdict in record.outcome.verdicts.items()
    ]


def liars(records: Iterable[RoundRecord]) -> set[tuple[int, int]]:
    """``(client, round)`` of every client that a simulated adversary controlled."""
    return {(client, record.round) for record in records for client in record.liars}
