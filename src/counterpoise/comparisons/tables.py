"""Tables that compare groups of runs: for a terminal, a paper or a page."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from counterpoise.comparisons.standing import Stand, lacking_seeds, seeds_of
from counterpoise.comparisons.wording import dashed, interval_of, signed, tells, unit_of
from counterpoise.measures import (
    CLIENT,
    COLUMNS,
    PERSONAL,
    Column,
    Paired,
    Standing,
    has_personal,
    is_share,
    metric_words,
    on_shared_seeds,
    plain_name,
)

__all__ = [
    "FORMATS",
    "OWN_MODELS",
    "as_csv",
    "as_latex",
    "as_markdown",
    "as_numbers",
    "as_plain",
    "columns",
    "on_clients",
    "own_columns",
]

_EACH = (
    "mean over clients on their held-out data, by each client's personal model if the method makes one, otherwise by"
)
OWN_MODELS = f"Personal models: {_EACH} the server's."
"""What the second table shows, for its reader."""


def on_clients(metric: str) -> str:
    """What the metric of the first table is, for its reader, if it is measured on clients' data; otherwise empty."""
    words = metric_words(metric).capitalize()
    if metric.startswith(PERSONAL):
        return f"{words}: {_EACH} the server's."
    return (
        f"{words}: mean over clients on their held-out data, by the server's model."
        if metric.startswith(CLIENT)
        else ""
    )


def columns(found: Stand) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: metric with spread, difference from the baseline with interval and p, then `COLUMNS`.

    The number of seeds has a column if rows differ in their seeds, Wilcoxon's p if there are enough seeds for it.
    """
    heads, cells = _compared(found, found.rows, found.against)
    more = [column for column in COLUMNS if column.server]
    rows = [[*its, *_measures(more, row, found.metric)] for its, row in zip(cells, found.rows, strict=True)]
    return [*heads, *(column.head for column in more)], rows


def own_columns(found: Stand) -> tuple[list[str], list[list[str]]]:
    """As `columns`, for the model that each client would use; no rows if no personal model was measured."""
    (first, *heads), cells = _compared(found, found.own)
    more = [column for column in COLUMNS if column.personal]
    rows = []
    for (label, *its), row, group in zip(cells, found.own, found.groups, strict=False):
        personal = any(has_personal(run.records, found.metric) for run in group.runs)
        rows.append([label, "personal" if personal else "server's", *its, *_measures(more, row, found.metric)])
    return [first, "model", *heads, *(column.head for column in more)], rows


def _measures(shown: Sequence[Column], row: Standing, metric: str) -> list[str]:
    _, unit = unit_of(metric)
    return [dashed(row.measures[column.name], column.show or unit) for column in shown]


def _compared(found: Stand, rows: Sequence[Standing], against: str = "") -> tuple[list[str], list[list[str]]]:
    """The columns that both tables have."""
    unit, show = unit_of(found.metric)
    ranked = any(row.paired is not None and not math.isnan(row.paired.wilcoxon) for row in rows)
    heads = [
        f"{metric_words(found.metric)}{unit and ' (%)'}",
        f"vs {against or found.baseline} [95 %]",
        "p",
        "Wilcoxon p",
    ]
    wide, uneven = 4 if ranked else 3, bool(lacking_seeds(rows))
    cells = []
    for group, row in zip(found.groups, rows, strict=False):
        spread = dashed(row.deviation, lambda x: f" ± {show(x)}", "")
        mean = ("failed" if group.sentence else "-") if math.isnan(row.mean) else show(row.mean) + spread
        seeds = [str(len(seeds_of(row)))] if uneven else []
        cells.append([row.label, *seeds, *[mean, *_beside(row.paired, found.metric)][:wide]])
    return ["method", *(["seeds"] if uneven else []), *heads[:wide]], cells


def _beside(beside: Paired | None, metric: str) -> tuple[str, str, str]:
    """A difference with its interval, its p, and Wilcoxon's p."""
    if beside is None:
        return "", "", ""
    _, show = unit_of(metric)
    interval = f" {interval_of(beside, show)}" if tells(beside, metric) else ""
    p, wilcoxon = (dashed(value, lambda p: f"{p:.2g}", "") for value in (beside.p, beside.wilcoxon))
    return signed(beside.difference, show) + interval, p, wilcoxon


def as_markdown(found: Stand) -> str:
    """A table in GitHub's Markdown, and a second one for personal models if there are any."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        return "\n".join([line(heads), "|---|" + "---:|" * (len(heads) - 1), *map(line, rows)])

    second = [OWN_MODELS, table(*own_columns(found))] if found.own else list(filter(None, [on_clients(found.metric)]))
    return "\n\n".join([table(*columns(found)), *second])


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"} | {
    character: f"\\{character}" for character in "&%$#_{}"
}


def as_latex(found: Stand) -> str:
    """A table for LaTeX with the package booktabs, and a second one for personal models if there are any."""

    def line(cells: Sequence[str]) -> str:
        escaped = ["".join(_LATEX.get(character, character) for character in cell) for cell in cells]
        return " & ".join(re.sub(r"(?<![\w-])-(?=\d)", "$-$", cell) for cell in escaped) + r" \\"

    def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        body = [line(heads), r"\midrule", *map(line, rows)]
        begin = rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}"
        return "\n".join([begin, r"\toprule", *body, r"\bottomrule", r"\end{tabular}"])

    second = [f"% {OWN_MODELS}\n{table(*own_columns(found))}"] if found.own else []
    told = on_clients(found.metric)
    return "\n\n".join([*([f"% {told}"] if told else []), table(*columns(found)), *second])


def as_numbers(found: Stand, first: str = "method") -> list[dict[str, Any]]:
    """A row for each group: mean over seeds, spread, paired difference from the baseline, and costs. No value is scaled."""
    rows = []
    for row in found.rows:
        beside = row.paired
        rows.append(
            {
                first: row.label,
                found.metric: row.mean,
                "deviation": row.deviation,
                "seeds": len(seeds_of(row)),
                "difference": math.nan if beside is None else beside.difference,
                "low": math.nan if beside is None else beside.low,
                "high": math.nan if beside is None else beside.high,
                "p": math.nan if beside is None else beside.p,
                **row.measures,
            }
        )
    return rows


def as_csv(found: Stand) -> str:
    """The rows of `as_numbers` as comma-separated values; what is not known is empty."""
    rows = [{key: "" if value != value else value for key, value in row.items()} for row in as_numbers(found)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")


FORMATS: dict[str, Callable[[Stand], str]] = {"csv": as_csv, "latex": as_latex, "markdown": as_markdown}


def as_plain(found: Stand, target: float | None = None) -> list[dict[str, Any]]:
    """Every group as plain values for JSON: the content of the tables, and every measure of each run."""
    target = target if is_share(found.metric) else None
    name = plain_name(found.metric)  # a run's measures have all of them
    ranked, own_ranked = map(on_shared_seeds, (found.rows, found.own))
    return [
        {
            "label": row.label,
            **_stood(row, shared),
            **{of_run: _plain(row.measures[of_run]) for of_run in _OF_RUN},
            "own_models": _stood(own, own_shared) if own else None,
            "failed": {str(run.seed): run.sentence for run in group.runs if run.failed},
            "runs": [
                {
                    "seed": run.seed,
                    "status": run.status,
                    "folder": run.path and str(run.path),
                    "measures": {k: _plain(v) for k, v in run.measures(name, target, found.lower).items()},
                }
                for run in group.runs
            ],
        }
        for group, row, shared, own, own_shared in zip_longest(found.groups, found.rows, ranked, found.own, own_ranked)
    ]


def _stood(row: Standing, shared: Standing) -> dict[str, Any]:
    """A row as plain values; `shared` is the same row over the seeds that all have, which the ranking uses."""
    of_model = {name: value for name, value in row.measures.items() if name not in _OF_RUN}
    return {
        "seeds": {str(seed): _plain(value) for seed, value in row.values.items()},
        "seed_count": len(seeds_of(row)),
        "ranked": {"seeds": sorted(seeds_of(shared)), "mean": _plain(shared.mean)},
        **{name: _plain(getattr(row, name)) for name in ("mean", "deviation", "low", "high")},
        **{name: _plain(value) for name, value in of_model.items()},
        "difference": None if row.paired is None else {k: _plain(v) for k, v in row.paired._asdict().items()},
    }


_OF_RUN = ("bytes", "seconds")
"""Columns that are the same for the server's model and for personal ones."""


def _plain(value: Any) -> Any:
    """None for NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
