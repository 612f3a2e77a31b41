"""Compare groups of runs with a baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from counterpoise.comparisons.collection import Group
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.errors import CounterpoiseError
from counterpoise.measures import (
    Standing,
    best_two,
    check_metric,
    has_personal,
    lower_is_better,
    measured_as,
    metrics_of,
    standings,
    usual_metric,
)

__all__ = ["Stand", "lacking_seeds", "seeds_of", "stand", "stand_of"]


@dataclass(frozen=True)
class Stand:
    """Several groups of runs, compared."""

    groups: Sequence[Group]
    rows: Sequence[Standing]
    baseline: str
    metric: str
    """The one asked for; by default accuracy, or loss if no accuracy was measured. See `stand` for its prefixes."""
    against: str = ""
    """What a heading calls the baseline, if not by its label."""
    own: Sequence[Standing] = ()
    """The same groups, measured by the model that each client would use; empty unless personal models were measured."""

    @property
    def lower(self) -> bool:
        """Whether a lower metric is better."""
        return lower_is_better(self.metric)


def stand(groups: Sequence[Group], baseline: str | None = None, against: str = "", metric: str = "") -> Stand:
    """Compare groups with a baseline: the one named, otherwise fedavg, otherwise the first; '' for none.

    `metric` is any that the finished runs measured, by default accuracy, or else loss. Without a test set it is measured
    on the clients' held-out data: ``personal_...`` if a method makes personal models, ``client_...`` otherwise.
    """
    labels = [group.label for group in groups]
    if baseline is None:
        fedavg = (group.label for group in groups if group.runs and group.runs[0].method == "fedavg")
        baseline = next(fedavg, labels[0] if labels else "")
    elif baseline and baseline not in labels:
        raise CounterpoiseError(f"The baseline must be one of {', '.join(labels)}, not {baseline!r}.")
    done = {group.label: {seed: run.records for seed, run in group.done.items()} for group in groups}
    measured = metrics_of(record for seeds in done.values() for records in seeds.values() for record in records)
    wanted = metric or usual_metric(measured)
    by = measured_as(wanted, measured, _personal(done, wanted))
    if metric and measured:
        check_metric(by, measured)
    lower = lower_is_better(by)
    rows = standings(done, baseline, by, lower)
    own = standings(done, baseline, by, lower, personal=True) if _personal(done, by) else ()
    return Stand(groups, rows, baseline, by, against, own)


def _personal(done: Mapping[str, Mapping[int, Sequence[RoundRecord]]], metric: str) -> bool:
    """Whether a run measured personal models."""
    return any(has_personal(records, metric) for seeds in done.values() for records in seeds.values())


def stand_of(groups: Sequence[Group], baseline: str, best: str = "best", metric: str = "") -> Stand:
    """Compare groups with a plan's baseline or, if it has none, with the best group, which headings call `best`."""
    found = stand(groups, baseline, metric=metric)
    two = best_two(found.rows, found.lower)
    return found if baseline or two is None else stand(groups, two[0].label, best, metric)


def seeds_of(row: Standing) -> set[int]:
    """The seeds with a finite value."""
    return {seed for seed, value in row.values.items() if math.isfinite(value)}


def lacking_seeds(rows: Sequence[Standing]) -> dict[str, list[int]]:
    """By label, the seeds that other rows have and this one lacks. Rows without any value are left out."""
    every = set[int]().union(*map(seeds_of, rows))
    return {row.label: sorted(every - seeds_of(row)) for row in rows if seeds_of(row) and every - seeds_of(row)}
