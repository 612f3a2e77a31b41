"""Sentences that say which group is best, by how much, and whether that is more than noise."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from statistics import mean

from counterpoise.comparisons.collection import Group
from counterpoise.comparisons.contents import COMPARISON
from counterpoise.comparisons.going_on import resuming
from counterpoise.comparisons.standing import Stand, lacking_seeds, seeds_of
from counterpoise.comparisons.wording import dashed, interval_of, tells, unit_of
from counterpoise.errors import CounterpoiseError
from counterpoise.measures import (
    PERSONAL,
    WILCOXON_FROM,
    Curve,
    Paired,
    Standing,
    best_two,
    curve_by,
    is_share,
    metric_words,
    rounds_to,
)
from counterpoise.memory import bytes_in_words
from counterpoise.methods import METHODS
from counterpoise.runs.contents import CONFIG
from counterpoise.runs.saved import SavedRun
from counterpoise.texts import counted

__all__ = ["reached", "verdict"]

_STILL = 3
"""This many equal values, and no others, are taken for a model that does not change."""


def verdict(found: Stand) -> list[str]:
    """Say which group is best over the seeds that all have, with its interval, and whether that is more than noise.

    If a method makes personal models, which are what its paper is about, also say which group is best by those. With
    batch norms that stay on clients there is no other model.
    """
    if best_two(found.rows, found.lower) is None and best_two(found.own, found.lower) is None:
        if not any(group.done for group in found.groups):
            return ["No run finished, so there is no best one."]
        return ["Nothing was measured, so there is no best one: give a test set, or hold samples of the clients back."]
    if not found.own:
        doubts = [] if found.metric.startswith(PERSONAL) else _unmeasured(found)
        return [*_best("best", found.rows, found), *_uneven(found), *doubts, *_unchanged(found)]
    return [
        *_best("best by the server's model", found.rows, found),
        *_best(f"best by personal {metric_words(found.metric)}", found.own, found),
        *_uneven(found),
        *_unchanged(found),
    ]


def _best(what: str, rows: Sequence[Standing], found: Stand) -> list[str]:
    two = best_two(rows, found.lower)
    if two is None:
        return []
    best, second, beside = two
    unit, show = unit_of(found.metric)
    low, high = (max(best.low, 0.0), min(best.high, 1.0)) if is_share(found.metric) else (best.low, best.high)
    everything = is_share(found.metric) and (low, high) == (0.0, 1.0)
    nothing = math.isnan(best.low) or math.isclose(best.low, best.high)
    interval = "" if nothing or everything else f" [{show(low)}, {show(high)}]"
    seeds = counted(len(best.values), "seed")
    lines = [f"{what}: {best.label}, {metric_words(found.metric)} {show(best.mean)}{unit}{interval} over {seeds}"]
    if second is None or beside is None:
        return lines
    return [*lines, *_ahead(second.label, beside, found.metric, found.lower)]


def _uneven(found: Stand) -> list[str]:
    """If a seed failed or was lost: which groups lack it, which seeds the ranking uses, and how to finish."""
    lacking = lacking_seeds(found.rows)
    if not lacking:
        return []
    shared = set.intersection(*(seeds_of(row) for row in found.rows if seeds_of(row)))
    over = (
        f"over the {counted(len(shared), 'seed')} that all have"
        if shared
        else "over different seeds, as none is shared by all"
    )
    told = [
        f"{label} has no result for seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        for label, seeds in lacking.items()
    ]
    return [f"warning: {'; '.join(told)}: the ranking is {over}", *_finishing(found.groups, lacking)]


def _finishing(groups: Sequence[Group], lacking: dict[str, list[int]]) -> list[str]:
    """The command that runs a comparison's missing seeds, unless all of them diverged and would do so again."""
    folders = {run.path.parent.parent for group in groups for run in group.runs if run.path}
    begun = {(group.label, run.seed): run for group in groups for run in group.runs}
    missing = [begun.get((label, seed)) for label, seeds in lacking.items() for seed in seeds]
    again = [run for run in missing if run is None or run.status != "diverged"]
    if len(folders) != 1 or not again or not ((folder := folders.pop()) / COMPARISON).exists():
        return []
    failed = [str(run.path) for run in again if run and run.failed and run.path and (run.path / CONFIG).exists()]
    first = f" (if it fails again, first: {shlex.join(['counterpoise', 'runs', 'rm', *failed])})" if failed else ""
    values = [run.settings for group in groups for run in group.runs]
    return [f"to finish: {resuming(folder, values)}{first}"]


def _unmeasured(found: Stand) -> list[str]:
    """Warn of methods whose personal models were not measured: their purpose is not the server's model."""
    named = [
        group.label
        for group in found.groups
        if any(map(_makes_models, group.done.values())) and not any(map(_measured_models, group.done.values()))
    ]
    why = "no client's data was held out, or evaluation.clients_every is 0"
    return [f"warning: the personal models of {', '.join(named)} were not measured: {why}"] if named else []


def _measured_models(run: SavedRun) -> bool:
    return any(name.startswith(PERSONAL) for record in run.records for name in record.clients)


def _makes_models(run: SavedRun) -> bool:
    choice = run.settings.get("method")
    try:
        options = {key: value for key, value in dict(choice or {}).items() if key != "name"}
        return any(part.personal for part in METHODS.make(dict(choice or {})["name"], **options).parts)
    except (CounterpoiseError, KeyError, TypeError, ValueError):  # a user's own method, or one of another version
        return False


def _unchanged(found: Stand) -> list[str]:
    """Warn of methods whose metric is the same in every round, with every seed: their models may have collapsed."""
    named = [
        group.label
        for group in found.groups
        if group.done and all(_still(curve_by(run.records, found.metric)) for run in group.done.values())
    ]
    why = "perhaps the models give every sample the same answer; look at the loss, or lower the learning rate"
    return [f"warning: the {metric_words(found.metric)} of {', '.join(named)} never changed: {why}"] if named else []


def _still(curve: Curve) -> bool:
    return len(curve) >= _STILL and len({value for _, value in curve}) == 1


def _ahead(second: str, beside: Paired, metric: str, lower: bool) -> list[str]:
    """By how much the best leads, what the test says about it, and which leads this few seeds cannot show.

    If no seed is shared by all, the group with the best mean may be behind over the seeds that both have.
    """
    _, show = unit_of(metric)
    if abs(beside.difference) < 1e-9:  # means of the same numbers in another order differ in the last bit
        alike = beside.seeds == 1 or beside.low == beside.high
        return [f"level with {second}" + (": no seed differs" if alike else f" over {beside.seeds} seeds that differ")]
    leads = (beside.difference < 0) is lower
    ahead = f"{'ahead of' if leads else 'behind'} {second} by {show(abs(beside.difference))}"
    if beside.seeds == 1:
        return [f"{ahead} with one seed", "one seed cannot tell a difference from noise: compare more seeds"]
    if math.isnan(beside.p):
        same = f"{ahead} with each of {beside.seeds} seeds"
        return [same, "a difference that never varies cannot be tested for noise: compare more seeds"]
    lead = beside._replace(low=-beside.high, high=-beside.low) if lower else beside  # of the lead, as `ahead` says it
    tested = (f"{interval_of(lead, show)}, " if tells(lead, metric) else "") + f"p = {beside.p:.2g}"
    tested += dashed(beside.wilcoxon, lambda p: f", Wilcoxon's p = {p:.2g}", "")
    if beside.low <= 0 <= beside.high:
        lines = [f"warning: {ahead}, which cannot be told from noise: {tested}"]
        if beside.seeds == 2:
            return [*lines, f"two seeds cannot tell which is better: compare at least {WILCOXON_FROM}"]
    else:
        lines = [f"{ahead} {tested}"]
    if beside.seeds < WILCOXON_FROM:
        lines += [
            f"with {beside.seeds} seeds that vary this much, "
            f"a lead below {show(beside.least)} cannot be told from noise",
            f"this p assumes that differences are normal; Wilcoxon's test does not, and needs {WILCOXON_FROM} seeds",
        ]
    return lines


def reached(found: Stand, target: float | None) -> list[str]:
    """For each group, the rounds and bytes to a target accuracy: the mean over the seeds that reached it."""
    if target is None:
        return []
    if not is_share(found.metric):
        asked = (
            "these runs did not measure accuracy"
            if found.metric == "loss"
            else f"{metric_words(found.metric)} is no share"
        )
        return [f"accuracy {target:g}: {asked}"]
    lines = []
    for group in found.groups:
        runs = list(group.done.values())
        rounds = [rounds_to(curve_by(run.records, found.metric), target) for run in runs]
        sent = [_sent(run, last) for run, last in zip(runs, rounds, strict=True) if last is not None]
        hit = [round for round in rounds if round is not None]
        how = f"in round {mean(hit):g}, after {bytes_in_words(mean(sent))} both ways" if hit else "never"
        some = f" (mean over {len(hit)} of {len(runs)} seeds)" if hit and len(runs) > 1 else ""
        lines.append(f"{metric_words(found.metric)} {target:g} reached by {group.label}: {how}{some}")
    return lines


def _sent(run: SavedRun, last: int) -> int:
    """Bytes both ways up to a round."""
    return sum(record.bytes_up + record.bytes_down for record in run.records if record.round <= last)
