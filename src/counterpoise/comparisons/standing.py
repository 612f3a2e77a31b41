"""Compare groups of runs with a baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from counterpoise.comparisons.collection import Group
from counterpoise.errors import CounterpoiseError
from counterpoise.measures import Standing, best_two, has_personal, standings

__all__ = ["Stand", "lacking_seeds", "seeds_of", "stand", "stand_of"]


@dataclass(frozen=True)
class Stand:
    """Several groups of runs, compared."""

    groups: Sequence[Group]
    rows: Sequence[Standing]
    baseline: str
    metric: str
    """accuracy, or loss if no accuracy was measured"""
    against: str = ""
    """What a heading calls the baseline, if not by its label."""
    own: Sequence[Standing] = ()
    """The same groups, measured by the model that each client would use; empty unless personal models were measured."""

    @property
    def lower(self) -> bool:
        """Whether a lower metric is better."""
        return self.metric == "loss"


def stand(groups: Sequence[Group], baseline: str | None = None, against: str = "") -> Stand:
    """Compare groups with a baseline: the one named, otherwise fedavg, otherwise the first; '' for none."""
    labels = [group.label for group in groups]
    if baseline is None:
        fedavg = (group.label for group in groups if group.runs and group.runs[0].method == "fedavg")
        baseline = next(fedavg, labels[0] if labels else "")
    elif baseline and baseline not in labels:
        raise CounterpoiseError(f"The baseline must be one of {', '.join(labels)}, not {baseline!r}.")
    done = {group.label: {seed: run.records for seed, run in group.done.items()} for group in groups}
    every = [record for seeds in done.values() for records in seeds.values() for record in records]
    measured = {name.removeprefix("personal_") for r in every for name in (*r.metrics, *r.clients)}
    metric = "accuracy" if "accuracy" in measured or "loss" not in measured else "loss"
    personal = any(has_personal(records, metric) for seeds in done.values() for records in seeds.values())
    rows, own = (
        standings(done, baseline, metric, metric == "loss", personal=which) if which is False or personal else ()
        for which in (False, True)
    )
    return Stand(groups, rows, baseline, metric, against, own)


def stand_of(groups: Sequence[Group], baseline: str, best: str = "best") -> Stand:
    """Compare groups with a plan's baseline or, if it has none, with the best group, which headings call `best`."""
    found = stand(groups, baseline)
    two = best_two(found.rows, found.lower)
    return found if baseline or two is None else stand(groups, two[0].label, best)


def seeds_of(row: Standing) -> set[int]:
    """The seeds with a finite value."""
    return {seed for seed, value in row.values.items() if math.isfinite(value)}


def lacking_seeds(rows: Sequence[Standing]) -> dict[str, list[int]]:
    """By label, the seeds that other rows have and this one lacks. Rows without any value are left out."""
    every = set[int]().union(*map(seeds_of, rows))
    return {row.label: sorted(every - seeds_of(row)) for row in rows if seeds_of(row) and every - seeds_of(row)}
