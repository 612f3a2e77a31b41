"""What it cost."""

from __future__ import annotations

import plotly.graph_objects as go

from counterpoise import measures
from counterpoise.charts.style import NEUTRAL, rows, shade, sized, unit
from counterpoise.reports.chart import Chart, Missing
from counterpoise.reports.study import Study
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


_VIEWS = {
    "time": (_seconds, "wall-clock time of all rounds", "s"),
    "traffic": (_traffic, "sent both ways", "B"),
    "memory": (_memory, "most memory held at once", "B"),
    "state": (_state, "kept between rounds besides the model, on server and clients", "B"),
}


def costs(study: Study) -> Chart | Missing:
    """Time, traffic, memory and state of every method."""
    title = "What it cost"
    figures: dict[tuple[str, ...], go.Figure] = {}
    for view, (of, text, base) in _VIEWS.items():
        values = [[of(run) for run in arm.runs] for arm in study.arms]
        largest = max((v for each in values for v in each), default=0)
        if not largest:
            continue
        label, scale = unit(largest) if base == "B" else ("s", 1.0)
        figure = go.Figure()
        for row, (arm, each) in enumerate(zip(study.arms, values, strict=True)):
            mean, deviation = measures.across_seeds([v / scale for v in each])
            figure.add_bar(
                x=[mean],
                y=[row],
                orientation="h",
                width=0.65,
                marker={"color": shade(arm.look.colour, 0.75)},
                error_x={"array": [deviation], "color": NEUTRAL, "thickness": 1.5, "width": 0}
                if len(each) > 1
                else None,
                hovertemplate=f"{arm.name}: %{{x:.4g}} {label}<extra></extra>",
                showlegend=False,
            )
        figures[view,] = sized(
            rows(figure, [arm.label for arm in study.arms]), 90 + 44 * len(study.arms), f"{text} ({label})", ""
        )
    if not figures:
        return Missing(title, "These runs kept no costs.")
    lines = " Lines: one sample deviation over seeds." if len(study.seeds) > 1 else ""
    return Chart(
        "cost",
        title,
        figures,
        {"Show": [view for (view,) in figures]},
        f"Whole runs, means over seeds.{lines} Time was measured on one machine, with whatever else ran on it; "
        "memory is the process's, or the GPU's if there was one.",
    )
