"""How well and how fast: a metric over rounds, bytes and seconds, and where every seed ended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product

import plotly.graph_objects as go

from counterpoise import measures
from counterpoise.charts.style import rows, shade, sized
from counterpoise.reports.chart import Chart, Missing
from counterpoise.reports.figures.panels import axes
from counterpoise.reports.figures.readable import readable
from counterpoise.reports.study import Arm, Study
from counterpoise.runs.plots import AXES, Line, common_rounds, curve_figure, metric_name, percent

__all__ = ["OWN_DATA", "SPREAD", "UNMEASURED", "curves", "every_seed", "final"]

OWN_DATA = "clients' held-out data: a personal model if the method makes one, otherwise the server's"
SPREAD = "; the bar is their mean, the line one sample deviation either side"
UNMEASURED = "this federation has no test set, and no client held samples back"

_BANDS = 3
"""With more methods, only the two best show their bands at once."""


def curves(study: Study) -> Chart | Missing:
    """Every metric against rounds, bytes sent and seconds."""
    title = "Learning curves" if len(study.arms) > 1 else "Learning curve"
    every = [Line(arm.name, arm.look, [run.records for run in arm.runs]) for arm in study.arms]
    views = list(study.views.values())
    beside = views if views[0] not in study.metrics else []  # what is compared comes first
    asked = dict.fromkeys([*beside, *study.metrics, *views])
    metrics = [metric for metric in asked if any(common_rounds(line, metric) for line in every)]
    if not metrics:
        return Missing(title, f"No round was evaluated: {UNMEASURED}, or the runs were stopped before a first round.")
    banded = [arm.name for arm in study.arms[: len(study.arms) if len(study.arms) <= _BANDS else 2]]
    figures: dict[tuple[str, ...], go.Figure] = {
        (metric_name(m), axis): readable(curve_figure(every, m, axis), study.arms, banded)
        for m, axis in product(metrics, AXES)
    }
    lines = "Lines are means over seeds" if len(study.seeds) > 1 else "One seed"
    deviation = (
        ", bands one sample deviation either side, at rounds that all seeds measured" if len(study.seeds) > 1 else ""
    )
    if deviation and len(study.arms) > _BANDS:
        deviation += "; the two best have theirs, others show it when you point at their line"
    return Chart(
        "curves",
        title,
        figures,
        {"Show": [metric_name(m) for m in metrics], "against": AXES},
        f"{lines}{deviation}. Bytes are those sent both ways; seconds are wall-clock time of the rounds.",
    )


def every_seed(figure: go.Figure, row: int, arm: Arm, values: Mapping[int, float], hover: str, panel: int = 0) -> None:
    """A method's row of dots, one for each seed, with their mean and deviation below them."""
    mean, deviation = measures.across_seeds(list(values.values()))
    figure.add_scatter(
        x=list(values.values()),
        y=[row] * len(values),
        mode="markers",
        marker={"color": shade(arm.look.colour, 0.75), "symbol": arm.look.symbol, "size": 9},
        customdata=[f"seed {seed}" for seed in values],
        hovertemplate=f"{arm.name}, %{{customdata}}: {hover}<extra></extra>",
        showlegend=False,
        cliponaxis=False,
        **axes(panel),
    )
    if len(values) > 1:
        figure.add_scatter(
            x=[mean],
            y=[row],
            mode="markers",
            marker={"symbol": "line-ns", "size": 22, "line": {"width": 2.5, "color": arm.look.colour}},
            error_x={"array": [deviation], "color": arm.look.colour, "thickness": 1.2, "width": 0},
            hovertemplate=f"{arm.name}, mean: {hover}<extra></extra>",
            showlegend=False,
            **axes(panel),
        )


def final(study: Study) -> Chart | Missing:
    """Where every seed ended: on the test set, and by personal models if a method makes them."""
    views = study.views
    what = measures.metric_words(study.metric) if len(views) > 1 else metric_name(*views.values())
    title = f"{what.capitalize()} after the last round"
    found = {view: figure for view, metric in views.items() if (figure := _ends(study, metric)) is not None}
    if not found:
        return Missing(title, f"No run measured a finite value: {UNMEASURED}, or the runs diverged.")
    spread = SPREAD if len(study.seeds) > 1 else ""
    own = f" Personal models are measured on {OWN_DATA}." if len(found) > 1 else ""
    figures: dict[tuple[str, ...], go.Figure]
    figures = {(view,): figure for view, figure in found.items()} if own else {(): next(iter(found.values()))}
    return Chart("final", title, figures, {"By": list(found)} if own else {}, f"Every dot is a seed{spread}.{own}")


def _ends(study: Study, metric: str) -> go.Figure | None:
    figure, shown = go.Figure(), list[str]()
    for arm in study.arms:
        ends = {run.seed: measures.last(measures.curve_by(run.records, metric)) for run in arm.runs}
        ends = {seed: value for seed, value in ends.items() if math.isfinite(value)}
        if ends:
            every_seed(figure, len(shown), arm, ends, "%{x:.2%}" if percent(metric) else "%{x:.4g}")
            shown.append(arm.label)
    if not shown:
        return None
    if percent(metric):
        figure.update_xaxes(
            tickformat=".2~%", minallowed=-0.02, maxallowed=1.02
        )  # otherwise a lone dot's axis goes to 150 %
    return sized(rows(figure, shown), 90 + 46 * len(shown), metric_name(metric))
