"""How the runs of a collection stand to each other, and that as a table for a terminal, a paper or a page."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from counterpoise.errors import CounterpoiseError
from counterpoise.measures import Paired, Standing, best_two, bytes_to, curve, rounds_to, standings, student_interval
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
    lines = [f"best: {best.label}, {found.metric} {show(best.mean)}{unit}{interval} over {len(best.values)} seeds"]
    if second is None or beside is None:
        return lines
    ahead = f"ahead of {second.label} by {show(abs(beside.difference))}"
    if math.isnan(beside.low):
        lines.append(f"{ahead}, of one seed: nothing tells it from noise; give more --seeds")
    elif beside.low <= 0 <= beside.high:
        lines.append(
            f"warning: {ahead}, which is noise: the interval {_interval(beside, show)} holds 0 (p = {beside.p:.2g})"
        )
    elif _by_chance(best, second):  # a few seeds that happen to agree in sign have a bootstrap interval without 0
        lines.append(
            f"warning: {ahead} {_interval(beside, show)}, p = {beside.p:.2g}, which may be noise: {beside.seeds} seeds differ "
            "too much to tell (Student's interval holds 0); give more --seeds"
        )
    else:
        lines.append(f"{ahead} {_interval(beside, show)}, p = {beside.p:.2g}")
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


def _by_chance(best: Standing, second: Standing) -> bool:
    low, high = student_interval([value - second.values[s] for s, value in best.values.items() if s in second.values])
    return low <= 0 <= high


def _unit(metric: str) -> tuple[str, Callable[[float], str]]:
    return ("", lambda x: f"{x:.4f}") if metric == "loss" else (" %", lambda x: f"{100 * x:.2f}")


def _interval(beside: Paired, show: Callable[[float], str]) -> str:
    return f"[{_signed(beside.low, show)}, {_signed(beside.high, show)}]"


def _signed(value: float, show: Callable[[float], str]) -> str:
    text = show(value)
    return text if text.startswith("-") else f"+{text}"


def columns(found: Stand) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: metric with spread, difference to the baseline with interval and p, stability, fairness, cost."""
    unit, show = _unit(found.metric)
    unit = unit and " (%)"
    heads = [
        "method",
        f"{found.metric}{unit}",
        f"vs {found.against or found.baseline} [95 %]",
        "p",
        "volatility",
        "gap",
        "traffic",
        "seconds",
    ]
    rows = []
    for group, row in zip(found.groups, found.rows, strict=True):
        blank = "failed" if group.sentence else "-"
        beside = row.paired
        rows.append(
            [
                row.label,
                blank if math.isnan(row.mean) else show(row.mean) + _or(row.deviation, lambda x: f" ± {show(x)}", ""),
                ""
                if beside is None
                else _signed(beside.difference, show)
                + ("" if math.isnan(beside.low) else f" {_interval(beside, show)}"),
                "" if beside is None or math.isnan(beside.low) else f"{beside.p:.2g}",
                _or(row.volatility, show),
                _or(row.gap, show),
                _or(row.bytes, size),
                _or(row.seconds, lambda x: f"{x:.3g}" if x < 1000 else f"{x:.0f}"),
            ]
        )
    return heads, rows


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
