"""What a report is about: the runs of each method, how charts show them, and what the page needs to know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from counterpoise.charts.style import Look, elided, look, words
from counterpoise.comparisons.collection import Group, collect
from counterpoise.comparisons.contents import COMPARISON
from counterpoise.comparisons.plan import Plan, read_plan
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.errors import CounterpoiseError
from counterpoise.measures import PERSONAL, has_personal, lower_is_better
from counterpoise.runs.config import OWN
from counterpoise.runs.saved import SavedRun

__all__ = ["Arm", "Study", "liars", "study", "verdicts"]


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
    """The metric by which methods are compared, if the user names one; ``personal_...`` included."""

    @cached_property
    def arms(self) -> tuple[Arm, ...]:
        """The methods with something to show, in order; each keeps its look even if another has nothing."""
        every = [Arm(group, look(place)) for place, group in enumerate(self.groups)]
        return tuple(arm for arm in every if arm.runs)

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
            return self.asked.removeprefix(PERSONAL)
        return "accuracy" if "accuracy" in self.metrics or "loss" not in self.metrics else "loss"

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
        named = {run.data for group in self.groups for run in group.runs}
        data = sorted("own data" if name == OWN else name for name in named)
        what = "settings" if self.plan and self.plan.kind == "sweep" else "methods"
        return f"{_list([group.label for group in self.groups], what)} on {' and '.join(data)}"


def _list(names: Sequence[str], what: str, most: int = 4) -> str:
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
        {"round": record.round, "client": client} | vars(verdict)
        for record in records
        for client, verdict in record.outcome.verdicts.items()
    ]


def liars(records: Iterable[RoundRecord]) -> set[tuple[int, int]]:
    """``(client, round)`` of every client that a simulated adversary controlled."""
    return {(client, record.round) for record in records for client in record.liars}
