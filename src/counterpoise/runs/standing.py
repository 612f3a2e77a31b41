"""How the runs of a collection stand to each other, and that as a table for a terminal, a paper or a page."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from counterpoise.errors import CounterpoiseError
from counterpoise.measures import WILCOXON_FROM, Paired, Standing, best_two, bytes_to, curve, rounds_to, standings
from counterpoise.runs.collection import Group

__all__ = ["FORMATS", "Stand", "as_latex", "as_markdown", "as_plain", "columns", "reached", "stand", "verdict"]


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
    return Stand(groups, standings(done, baseline, metric, metric == "loss"), baseline, metric, against)


def verdict(found: Stand) -> list[str]:
    """Which is best, with its interval, and whether that is more than noise."""
    two = best_two(found.rows, found.lower)
    if two is None:
        return ["No run finished, so there is no best one."]
    best, second, beside = two
    unit, show = _unit(found.metric)
    interval = "" if math.isnan(best.low) else f" [{show(best.low)}, {show(best.high)}]"
    seeds = "1 seed" if len(best.values) == 1 else f"{len(best.values)} seeds"
    lines = [f"best: {best.label}, {found.metric} {show(best.mean)}{unit}{interval} over {seeds}"]
    return lines if second is None or beside is None else lines + _ahead(second.label, beside, show)


def _ahead(second: str, beside: Paired, show: Callable[[float], str]) -> list[str]:
    """By how much the best leads, what the test says of that, and what so few seeds could not have shown."""
    ahead = f"ahead of {second} by {show(abs(beside.difference))}"
    if beside.seeds == 1:
        return [f"{ahead}, of one seed: nothing tells it from noise; give more --seeds"]
    if math.isnan(beside.p):
        return [f"{ahead}, alike in all {beside.seeds} seeds: no spread tells it from noise; give more --seeds"]
    tested = f"{_interval(beside, show)}, p = {beside.p:.2g}"
    tested += _or(beside.wilcoxon, lambda p: f", Wilcoxon's p = {p:.2g}", "")
    if beside.low <= 0 <= beside.high:
        lines = [f"warning: {ahead}, which cannot be told from noise: {tested}"]
    else:
        lines = [f"{ahead} {tested}"]
    if beside.seeds < WILCOXON_FROM:
        lines.append(
            f"{beside.seeds} seeds that vary like these could not have shown a lead below {show(beside.least)}, nor any "
            f"without taking differences to be normal; Wilcoxon's test, which does not, needs {WILCOXON_FROM} --seeds"
        )
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


def columns(found: Stand) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: metric with spread, difference to the baseline with interval and p, stability, fairness, cost.

    Wilcoxon's p has a column where there are seeds enough for it.
    """
    unit, show = _unit(found.metric)
    unit = unit and " (%)"
    ranked = any(row.paired is not None and not math.isnan(row.paired.wilcoxon) for row in found.rows)
    heads = [
        "method",
        f"{found.metric}{unit}",
        f"vs {found.against or found.baseline} [95 %]",
        "p",
        *(["Wilcoxon p"] if ranked else []),
        "volatility",
        "gap",
        "traffic",
        "seconds",
    ]
    rows = []
    for group, row in zip(found.groups, found.rows, strict=True):
        blank = "failed" if group.sentence else "-"
        rows.append(
            [
                row.label,
                blank if math.isnan(row.mean) else show(row.mean) + _or(row.deviation, lambda x: f" ± {show(x)}", ""),
                *_beside(row.paired, show)[: 3 if ranked else 2],
                _or(row.volatility, show),
                _or(row.gap, show),
                _or(row.bytes, size),
                _or(row.seconds, lambda x: f"{x:.3g}" if x < 1000 else f"{x:.0f}"),
            ]
        )
    return heads, rows


def _beside(beside: Paired | None, show: Callable[[float], str]) -> tuple[str, str, str]:
    """A difference with its interval, its p, and Wilcoxon's."""
    if beside is None:
        return "", "", ""
    interval = "" if math.isnan(beside.low) else f" {_interval(beside, show)}"
    p, wilcoxon = (_or(value, lambda p: f"{p:.2g}", "") for value in (beside.p, beside.wilcoxon))
    return _signed(beside.difference, show) + interval, p, wilcoxon


def _or(value: float, show: Callable[[float], str], otherwise: str = "-") -> str:
    return otherwise if math.isnan(value) else show(value)


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def as_markdown(found: Stand) -> str:
    """A table in GitHub's Markdown."""
    heads, rows = columns(found)

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(heads), "|---|" + "---:|" * (len(heads) - 1), *map(line, rows)])


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"} | {
    character: f"\\{character}" for character in "&%$#_{}"
}


def as_latex(found: Stand) -> str:
    """A table for LaTeX with the package booktabs."""
    heads, rows = columns(found)

    def line(cells: Sequence[str]) -> str:
        escaped = ["".join(_LATEX.get(character, character) for character in cell) for cell in cells]
        return " & ".join(re.sub(r"(?<![\w-])-(?=\d)", "$-$", cell) for cell in escaped) + r" \\"

    body = [line(heads), r"\midrule", *map(line, rows)]
    return "\n".join(
        [rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", r"\toprule", *body, r"\bottomrule", r"\end{tabular}"]
    )


FORMATS: dict[str, Callable[[Stand], str]] = {"latex": as_latex, "markdown": as_markdown}


def as_plain(found: Stand, target: float | None = None) -> list[dict[str, Any]]:
    """Every group as plain values for JSON: what the table says, and every measure of each of its runs."""
    target = None if found.lower else target  # it is an accuracy
    return [
        {
            "label": row.label,
            "seeds": {str(seed): _plain(value) for seed, value in row.values.items()},
            **{
                name: _plain(getattr(row, name))
                for name in ("mean", "deviation", "low", "high", "volatility", "gap", "worst", "bytes", "seconds")
            },
            "difference": None if row.paired is None else {k: _plain(v) for k, v in row.paired._asdict().items()},
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
        for group, row in zip(found.groups, found.rows, strict=True)
    ]


def _plain(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
