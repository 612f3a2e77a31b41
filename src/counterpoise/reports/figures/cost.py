"""What it cost."""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go

from counterpoise import measures
from counterpoise.charts.style import NEUTRAL, shade, unit
from counterpoise.measures.columns import three
from counterpoise.memory import bytes_in_words
from counterpoise.reports.chart import Chart, Missing
from counterpoise.reports.figures.panels import axes, row_panels
from counterpoise.reports.study import Arm, Study
from counterpoise.runs.saved import SavedRun

__all__ = ["costs"]


def _seconds(run: SavedRun) -> float:
    return measures.cost(run.records).seconds


def _traffic(run: SavedRun) -> float:
    found = measures.cost(run.records)
    return found.bytes_up + found.bytes_down


def _memory(run: SavedRun) -> float:
    return measures.cost(run.records).peak_memory


def _state(run: SavedRun) -> float:
    return run.records[-1].bytes_server + run.records[-1].bytes_clients


def _epsilon(run: SavedRun) -> float:
    """NaN if the run recorded none: without noise there is no bound, which is not an epsilon of 0."""
    found = (record.outcome.facts["epsilon"] for record in reversed(run.records) if "epsilon" in record.outcome.facts)
    return next(found, math.nan)


_VIEWS = {
    "time": (_seconds, "time is wall-clock time of all rounds on one machine, with whatever else ran on it"),
    "traffic": (_traffic, "traffic is what was sent both ways"),
    "memory": (_memory, "memory is the most that the process held, or its GPU if there was one"),
    "state": (_state, "state is what server and clients keep between rounds besides the model"),
    "epsilon": (
        _epsilon,
        "epsilon is the privacy spent, as the method recorded it in the last round (no bar: it recorded none)",
    ),
}
"""What each panel shows, and a clause that explains it."""


def _scaled(name: str, largest: float) -> tuple[str, float]:
    """A panel's unit, and what to divide by: bytes, or seconds, minutes or hours; an epsilon has no unit."""
    if name == "epsilon":
        return "", 1.0
    if name != "time":
        return unit(largest)
    return next((one for one in (("h", 3600.0), ("min", 60.0)) if largest >= 10 * one[1]), ("s", 1.0))


def costs(study: Study) -> Chart | Missing:
    """Time, traffic, memory, state and epsilon of every method that kept them, side by side."""
    title = "What it cost"
    figure, scales, said = go.Figure(), list[dict[str, Any]](), list[str]()
    for name, (of, clause) in _VIEWS.items():
        values = [[v for run in arm.runs if math.isfinite(v := of(run))] for arm in study.arms]
        largest = max((v for each in values for v in each), default=0)
        if not largest:
            continue
        label, scale = _scaled(name, largest)
        for row, (arm, each) in enumerate(zip(study.arms, values, strict=True)):
            if each:
                _bar(figure, row, arm, [v / scale for v in each], label, len(scales))
        scales.append(
            {
                "title": {"text": f"{name} ({label})" if label else name},
                "nticks": 4,
                "range": [0, 1.3 * largest / scale],
            }
        )
        said.append(clause)
    if not scales:
        return Missing(title, "These runs kept no costs.")
    means = "means over seeds; lines: one sample deviation" if len(study.seeds) > 1 else "one seed"
    return Chart(
        "cost",
        title,
        {(): row_panels(figure, [arm.label for arm in study.arms], scales)},
        caption=f"Whole runs, {means}: {'; '.join(said)}.{_uploads(study)}",
    )


def _uploads(study: Study) -> str:
    """What clients sent, apart from what they were sent, because only the two together have a panel."""
    found: dict[str, list[str]] = {}
    for arm in study.arms:
        if any(sent := [measures.cost(run.records).bytes_up for run in arm.runs]):
            found.setdefault(bytes_in_words(measures.across_seeds(sent)[0]), []).append(arm.name)
    if not found:
        return ""
    named = (f"{amount} ({', '.join(names)})" if len(found) > 1 else amount for amount, names in found.items())
    return f" Of what was sent, clients uploaded {'; '.join(named)}."


def _bar(figure: go.Figure, row: int, arm: Arm, values: list[float], unit: str, panel: int) -> None:
    """A method's bar, with its number at the end."""
    mean, deviation = measures.across_seeds(values)
    figure.add_bar(
        x=[mean],
        y=[row],
        orientation="h",
        width=0.6,
        marker={"color": shade(arm.look.colour, 0.75)},
        error_x={"array": [deviation], "color": NEUTRAL, "thickness": 1.5, "width": 0} if len(values) > 1 else None,
        hovertemplate=f"{arm.name}: %{{x:.4g}} {unit}<extra></extra>",
        showlegend=False,
        **axes(panel),
    )
    figure.add_scatter(
        x=[mean + (deviation if len(values) > 1 else 0.0)],
        y=[row],
        mode="text",
        text=[f" {three(mean)}"],
        textposition="middle right",
        textfont={"size": 11.5},
        hoverinfo="skip",
        showlegend=False,
        cliponaxis=False,
        **axes(panel),
    )
