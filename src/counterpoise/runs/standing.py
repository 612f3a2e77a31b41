"""How the runs of a collection stand to each other, and that as a table for a terminal, a paper or a page."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import mean
from typing import Any

from counterpoise.errors import CounterpoiseError
from counterpoise.measures import (
    COLUMNS,
    WILCOXON_FROM,
    Column,
    Paired,
    Standing,
    best_two,
    bytes_to,
    curve,
    has_personal,
    on_shared_seeds,
    rounds_to,
    standings,
)
from counterpoise.measures.columns import size
from counterpoise.methods import METHODS
from counterpoise.runs.collection import Group, Kept
from counterpoise.runs.contents import COMPARISON, CONFIG

__all__ = [
    "FORMATS",
    "OWN_MODELS",
    "Stand",
    "as_latex",
    "as_markdown",
    "as_plain",
    "columns",
    "own_columns",
    "reached",
    "stand",
    "verdict",
]


@dataclass(frozen=True)
class Stand:
    """Several groups of runs side by side."""

    groups: Sequence[Group]
    rows: Sequence[Standing]
    baseline: str
    metric: str
    """accuracy, or loss where no accuracy was measured"""
    against: str = ""
    """What the baseline is called in a heading, where not by its label."""
    own: Sequence[Standing] = ()
    """The same groups by the model that each client would use; empty unless a method's personal models were measured."""

    @property
    def lower(self) -> bool:
        """Whether less of the metric is better."""
        return self.metric == "loss"


def stand(groups: Sequence[Group], baseline: str | None = None, against: str = "") -> Stand:
    """Hold groups against a baseline: the one named, or else fedavg, or else the first; '' for none."""
    labels = [group.label for group in groups]
    if baseline is None:
        fedavg = (group.label for group in groups if group.runs and group.runs[0].method == "fedavg")
        baseline = next(fedavg, labels[0] if labels else "")
    elif baseline and baseline not in labels:
        raise CounterpoiseError(f"The baseline must be one of {', '.join(labels)}, not {baseline!r}.")
    done = {group.label: {seed: run.records for seed, run in group.done.items()} for group in groups}
    measured = {name for seeds in done.values() for records in seeds.values() for r in records for name in r.metrics}
    metric = "accuracy" if "accuracy" in measured or "loss" not in measured else "loss"
    personal = any(has_personal(records, metric) for seeds in done.values() for records in seeds.values())
    rows, own = (
        standings(done, baseline, metric, metric == "loss", personal=which) if which is False or personal else ()
        for which in (False, True)
    )
    return Stand(groups, rows, baseline, metric, against, own)


def verdict(found: Stand) -> list[str]:
    """Which is best over the seeds that all have, with its interval, and whether that is more than noise.

    Where a method makes personal models, which its paper is about, it says so of those too.
    """
    if best_two(found.rows, found.lower) is None:
        return ["No run finished, so there is no best one."]
    if not found.own:
        return [*_best("best", found.rows, found), *_uneven(found), *_unmeasured(found)]
    return [
        *_best("best by the server's model", found.rows, found),
        *_best(f"best by personal {found.metric}", found.own, found),
        *_uneven(found),
    ]


def _best(what: str, rows: Sequence[Standing], found: Stand) -> list[str]:
    two = best_two(rows, found.lower)
    if two is None:
        return []
    best, second, beside = two
    unit, show = _unit(found.metric)
    low, high = (best.low, best.high) if found.lower else (max(best.low, 0.0), min(best.high, 1.0))
    interval = "" if math.isnan(best.low) else f" [{show(low)}, {show(high)}]"
    seeds = _counted(len(best.values))
    lines = [f"{what}: {best.label}, {found.metric} {show(best.mean)}{unit}{interval} over {seeds}"]
    if second is None or beside is None:
        return lines
    return [*lines, *_ahead(second.label, beside, show, found.lower)]


def _counted(seeds: int) -> str:
    return "1 seed" if seeds == 1 else f"{seeds} seeds"


def _seeds(row: Standing) -> set[int]:
    return {seed for seed, value in row.values.items() if math.isfinite(value)}


def _lacking(rows: Sequence[Standing]) -> dict[str, list[int]]:
    """By label, the seeds that others have a value of and this one has not; of labels without any value, nothing."""
    every = set[int]().union(*map(_seeds, rows))
    return {row.label: sorted(every - _seeds(row)) for row in rows if _seeds(row) and every - _seeds(row)}


def _uneven(found: Stand) -> list[str]:
    """If a seed failed or was lost: who lacks which, what the ranking is over, and how to finish it."""
    lacking = _lacking(found.rows)
    if not lacking:
        return []
    shared = set.intersection(*(_seeds(row) for row in found.rows if _seeds(row)))
    over = (
        f"over the {_counted(len(shared))} that all have"
        if shared
        else "over different seeds, as none is shared by all"
    )
    told = [
        f"{label} has no result for seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        for label, seeds in lacking.items()
    ]
    return [f"warning: {'; '.join(told)}: the ranking is {over}", *_finishing(found.groups, lacking)]


def _finishing(groups: Sequence[Group], lacking: dict[str, list[int]]) -> list[str]:
    """The commands that finish a comparison's missing seeds. A run that diverged would do so again."""
    folders = {run.path.parent.parent for group in groups for run in group.runs}
    begun = {(group.label, run.seed): run for group in groups for run in group.runs}
    missing = [begun.get((label, seed)) for label, seeds in lacking.items() for seed in seeds]
    again = [run for run in missing if run is None or run.status != "diverged"]
    if len(folders) != 1 or not again or not ((folder := folders.pop()) / COMPARISON).exists():
        return []
    failed = [str(run.path) for run in again if run and run.failed and (run.path / CONFIG).exists()]
    first = f" (if it fails again, first: {shlex.join(['counterpoise', 'runs', 'rm', *failed])})" if failed else ""
    return [f"to finish: {shlex.join(['counterpoise', 'resume', str(folder)])}{first}"]


def _unmeasured(found: Stand) -> list[str]:
    """A warning for methods whose personal models nothing measured: their server's model is not what they are for."""
    named = [group.label for group in found.groups if group.done and any(map(_makes_models, group.done.values()))]
    why = "no client's data was held out, or evaluation.clients_every is 0"
    return [f"warning: the personal models of {', '.join(named)} were not measured: {why}"] if named else []


def _makes_models(run: Kept) -> bool:
    choice = run.settings.get("method")
    try:
        options = {key: value for key, value in dict(choice or {}).items() if key != "name"}
        return any(part.personal for part in METHODS.make(dict(choice or {})["name"], **options).parts)
    except (CounterpoiseError, KeyError, TypeError, ValueError):  # of its author's own, or of another version
        return False


def _ahead(second: str, beside: Paired, show: Callable[[float], str], lower: bool) -> list[str]:
    """By how much the best leads, what the test says of that, and what so few seeds could not have shown.

    If no seed is shared by all, the best mean may be behind over the seeds that both have.
    """
    if beside.difference == 0:
        alike = beside.seeds == 1 or beside.low == beside.high
        return [f"level with {second}" + (": no seed differs" if alike else f" over {beside.seeds} seeds that differ")]
    leads = (beside.difference < 0) is lower
    ahead = f"{'ahead of' if leads else 'behind'} {second} by {show(abs(beside.difference))}"
    if beside.seeds == 1:
        return [f"{ahead} with one seed", "one seed cannot tell a difference from noise: compare more seeds"]
    if math.isnan(beside.p):
        same = f"{ahead} with each of {beside.seeds} seeds"
        return [same, "a difference that never varies cannot be tested for noise: compare more seeds"]
    tested = f"{_interval(beside, show)}, p = {beside.p:.2g}"
    tested += _or(beside.wilcoxon, lambda p: f", Wilcoxon's p = {p:.2g}", "")
    if beside.low <= 0 <= beside.high:
        lines = [f"warning: {ahead}, which cannot be told from noise: {tested}"]
    else:
        lines = [f"{ahead} {tested}"]
    if beside.seeds < WILCOXON_FROM:
        lines += [
            f"with {beside.seeds} seeds that vary this much, a lead below {show(beside.least)} cannot be told from noise",
            f"this p takes differences to be normal: Wilcoxon's test does not, and needs {WILCOXON_FROM} seeds",
        ]
    return lines


def reached(found: Stand, target: float | None) -> list[str]:
    """For each group the rounds and bytes to a target accuracy: the mean over the seeds that reached it."""
    if target is None:
        return []
    if found.metric != "accuracy":
        return [f"accuracy {target:g}: these runs did not measure accuracy"]
    lines = []
    for group in found.groups:
        runs = list(group.done.values())
        rounds = [r for run in runs if (r := rounds_to(curve(run.records), target)) is not None]
        sent = [b for run in runs if (b := bytes_to(run.records, target)) is not None]
        how = f"in round {mean(rounds):g}, after {size(mean(sent))} both ways" if rounds else "never"
        some = f" (mean over {len(rounds)} of {len(runs)} seeds)" if rounds and len(runs) > 1 else ""
        lines.append(f"accuracy {target:g} reached by {group.label}: {how}{some}")
    return lines


def _unit(metric: str) -> tuple[str, Callable[[float], str]]:
    return ("", lambda x: f"{x:.4f}") if metric == "loss" else (" %", lambda x: f"{100 * x:.2f}")


def _interval(beside: Paired, show: Callable[[float], str]) -> str:
    return f"[{_signed(beside.low, show)}, {_signed(beside.high, show)}]"


def _signed(value: float, show: Callable[[float], str]) -> str:
    text = show(value)
    return text if text.startswith("-") else f"+{text}"


OWN_MODELS = (
    "Personal models: mean over clients on their held-out data, by each client's personal model if the method makes "
    "one, otherwise by the server's."
)
"""What the second table is of, for a reader."""


def columns(found: Stand) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: metric with spread, difference to the baseline with interval and p, stability, fairness, cost.

    The number of seeds has a column if rows differ in their seeds, Wilcoxon's p if there are seeds enough for it.
    """
    heads, cells = _compared(found, found.rows, found.against)
    more = [column for column in COLUMNS if column.server]
    rows = [[*its, *_measures(more, row, found.metric)] for its, row in zip(cells, found.rows, strict=True)]
    return [*heads, *(column.head for column in more)], rows


def own_columns(found: Stand) -> tuple[list[str], list[list[str]]]:
    """As `columns`, by the model that each client would use; without rows if no personal model was measured."""
    (first, *heads), cells = _compared(found, found.own)
    more = [column for column in COLUMNS if column.personal]
    rows = []
    for (label, *its), row, group in zip(cells, found.own, found.groups, strict=False):
        personal = any(has_personal(run.records, found.metric) for run in group.runs)
        rows.append([label, "personal" if personal else "server's", *its, *_measures(more, row, found.metric)])
    return [first, "model", *heads, *(column.head for column in more)], rows


def _measures(shown: Sequence[Column], row: Standing, metric: str) -> list[str]:
    _, unit = _unit(metric)
    return [_or(row.measures[column.name], column.show or unit) for column in shown]


def _compared(found: Stand, rows: Sequence[Standing], against: str = "") -> tuple[list[str], list[list[str]]]:
    """The columns that both tables have."""
    unit, show = _unit(found.metric)
    ranked = any(row.paired is not None and not math.isnan(row.paired.wilcoxon) for row in rows)
    heads = [f"{found.metric}{unit and ' (%)'}", f"vs {against or found.baseline} [95 %]", "p", "Wilcoxon p"]
    wide, uneven = 4 if ranked else 3, bool(_lacking(rows))
    cells = []
    for group, row in zip(found.groups, rows, strict=False):
        spread = _or(row.deviation, lambda x: f" ± {show(x)}", "")
        mean = ("failed" if group.sentence else "-") if math.isnan(row.mean) else show(row.mean) + spread
        seeds = [str(len(_seeds(row)))] if uneven else []
        cells.append([row.label, *seeds, *[mean, *_beside(row.paired, show)][:wide]])
    return ["method", *(["seeds"] if uneven else []), *heads[:wide]], cells


def _beside(beside: Paired | None, show: Callable[[float], str]) -> tuple[str, str, str]:
    """A difference with its interval, its p, and Wilcoxon's."""
    if beside is None:
        return "", "", ""
    interval = "" if math.isnan(beside.low) else f" {_interval(beside, show)}"
    p, wilcoxon = (_or(value, lambda p: f"{p:.2g}", "") for value in (beside.p, beside.wilcoxon))
    return _signed(beside.difference, show) + interval, p, wilcoxon


def _or(value: float, show: Callable[[float], str], otherwise: str = "-") -> str:
    return otherwise if math.isnan(value) else show(value)


def as_markdown(found: Stand) -> str:
    """A table in GitHub's Markdown, and a second one of personal models if there are any."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        return "\n".join([line(heads), "|---|" + "---:|" * (len(heads) - 1), *map(line, rows)])

    second = [OWN_MODELS, table(*own_columns(found))] if found.own else []
    return "\n\n".join([table(*columns(found)), *second])


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"} | {
    character: f"\\{character}" for character in "&%$#_{}"
}


def as_latex(found: Stand) -> str:
    """A table for LaTeX with the package booktabs, and a second one of personal models if there are any."""

    def line(cells: Sequence[str]) -> str:
        escaped = ["".join(_LATEX.get(character, character) for character in cell) for cell in cells]
        return " & ".join(re.sub(r"(?<![\w-])-(?=\d)", "$-$", cell) for cell in escaped) + r" \\"

    def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        body = [line(heads), r"\midrule", *map(line, rows)]
        begin = rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}"
        return "\n".join([begin, r"\toprule", *body, r"\bottomrule", r"\end{tabular}"])

    second = [f"% {OWN_MODELS}\n{table(*own_columns(found))}"] if found.own else []
    return "\n\n".join([table(*columns(found)), *second])


FORMATS: dict[str, Callable[[Stand], str]] = {"latex": as_latex, "markdown": as_markdown}


def as_plain(found: Stand, target: float | None = None) -> list[dict[str, Any]]:
    """Every group as plain values for JSON: what the table says, and every measure of each of its runs."""
    target = None if found.lower else target  # it is an accuracy
    ranked, own_ranked = map(on_shared_seeds, (found.rows, found.own))
    return [
        {
            "label": row.label,
            **_stood(row, shared),
            **{name: _plain(row.measures[name]) for name in _OF_RUN},
            "own_models": _stood(own, own_shared) if own else None,
            "failed": {str(run.seed): run.sentence for run in group.runs if run.failed},
            "runs": [
                {
                    "seed": run.seed,
                    "status": run.status,
                    "folder": str(run.path),
                    "measures": {k: _plain(v) for k, v in run.measures(found.metric, target, found.lower).items()},
                }
                for run in group.runs
            ],
        }
        for group, row, shared, own, own_shared in zip_longest(found.groups, found.rows, ranked, found.own, own_ranked)
    ]


def _stood(row: Standing, shared: Standing) -> dict[str, Any]:
    """`shared` is the same standing over the seeds that all share, by which it is ranked."""
    of_model = {name: value for name, value in row.measures.items() if name not in _OF_RUN}
    return {
        "seeds": {str(seed): _plain(value) for seed, value in row.values.items()},
        "seed_count": len(_seeds(row)),
        "ranked": {"seeds": sorted(_seeds(shared)), "mean": _plain(shared.mean)},
        **{name: _plain(getattr(row, name)) for name in ("mean", "deviation", "low", "high")},
        **{name: _plain(value) for name, value in of_model.items()},
        "difference": None if row.paired is None else {k: _plain(v) for k, v in row.paired._asdict().items()},
    }


_OF_RUN = ("bytes", "seconds")
"""Columns that are the same for the server's model and for personal ones."""


def _plain(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
