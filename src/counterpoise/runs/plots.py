"""Curves of runs: a metric over rounds, bytes or seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import plotly.graph_objects as go

from counterpoise import measures
from counterpoise.charts.style import Look, alone, elided, look, shade, sized, unit, words
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.errors import CounterpoiseError, unknown

__all__ = [
    "AXES",
    "Line",
    "band",
    "common_rounds",
    "curve_figure",
    "metric_name",
    "percent",
    "plot_curves",
]

AXES = ("rounds", "bytes", "seconds")
_NAMES = {
    "accuracy": "test accuracy",
    "loss": "test loss",
    "train_loss": "training loss",
    "train_accuracy": "training accuracy",
}
_POINTS = 400
"""Most points of a curve; a longer one is shown at evenly spaced rounds."""


class Line(NamedTuple):
    """A method's line in a chart."""

    name: str
    """Without markup."""
    look: Look
    runs: Sequence[Sequence[RoundRecord]]
    """The rounds of its runs, one for each seed."""


def plot_curves(
    methods: Iterable[tuple[str, Sequence[Sequence[RoundRecord]]]], metric: str | None, against: str
) -> go.Figure:
    """Methods by name, each with the rounds of its runs, as a figure; by default their accuracy, or else their loss."""
    if against not in AXES:
        raise unknown("axis", against, AXES)
    lines = [Line(words(elided(name)), look(place), runs) for place, (name, runs) in enumerate(methods)]
    rounds = [record for line in lines for records in line.runs for record in records]
    there = measures.metrics_of(rounds)
    metric = metric or measures.usual_metric(there)
    metric = measures.measured_as(metric, there, measures.has_personal(rounds, metric))
    if metric not in there and all(name.startswith("train_") for name in there):
        raise CounterpoiseError(
            "There is nothing to plot: no round was evaluated, because there is no test set and no client held samples back."
        )
    if metric not in there:
        raise unknown("metric", metric, there, "in these runs")
    return alone(curve_figure(lines, metric, against))


def metric_name(metric: str) -> str:
    """A metric's name for people."""
    return _NAMES.get(metric, measures.metric_words(metric))


def percent(metric: str) -> str | None:
    """The number format of its axis."""
    return ".0%" if metric.endswith("accuracy") else None


def band(
    figure: go.Figure,
    name: str,
    look: Look,
    x: Sequence[float],
    across: Sequence[tuple[float, float]],
    hover: str,
    rounds: Sequence[int],
    opacity: float = 0.16,
) -> None:
    """A line of means over seeds, with a band of one deviation either side if there are several."""
    means = [mean for mean, _ in across]
    wide = [(at, mean, deviation) for at, (mean, deviation) in zip(x, across, strict=True) if not math.isnan(deviation)]
    if wide:
        figure.add_scatter(
            x=[at for at, _, _ in wide] + [at for at, _, _ in reversed(wide)],
            y=[m + d for _, m, d in wide] + [m - d for _, m, d in reversed(wide)],
            fill="toself",
            fillcolor=shade(look.colour, opacity),
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            legendgroup=name,
            showlegend=False,
        )
    figure.add_scatter(
        x=x,
        y=means,
        name=name,
        legendgroup=name,
        mode="lines" if len(x) > 1 else "markers",
        line={"color": look.colour, "dash": look.dash, "width": 2},
        marker={"color": look.colour, "symbol": look.symbol, "size": 8},
        customdata=list(rounds),
        hovertemplate=f"{name}<br>round %{{customdata}}: {hover}<extra></extra>",
    )


def common_rounds(line: Line, metric: str) -> list[int]:
    """The rounds in which all runs of a line measured a metric, thinned out if there are many."""
    found = [{r for r, v in measures.curve_by(records, metric) if math.isfinite(v)} for records in line.runs]
    rounds = sorted(set.intersection(*found)) if found else []
    step = -(-len(rounds) // _POINTS)
    return rounds if step <= 1 else sorted({*rounds[::step], rounds[-1]})


def curve_figure(lines: Sequence[Line], metric: str, axis: str) -> go.Figure:
    """A metric against one of `AXES`."""
    figure = go.Figure()
    places = [[_places(records, axis) for records in line.runs] for line in lines]
    label, scale = {
        "rounds": ("rounds", 1.0),
        "bytes": unit(max((max(p.values(), default=0) for line in places for p in line), default=0)),
        "seconds": ("seconds", 1.0),
    }[axis]
    shown = ".2%" if percent(metric) else ".4g"
    for line, place in zip(lines, places, strict=True):
        rounds = common_rounds(line, metric)
        if not rounds:
            continue
        values = [dict(measures.curve_by(records, metric)) for records in line.runs]
        x = [round(sum(p[r] for p in place) / len(place) / scale, 4) for r in rounds]
        across = [_rounded(measures.across_seeds([v[r] for v in values])) for r in rounds]
        band(figure, line.name, line.look, x, across, f"%{{y:{shown}}}", rounds)
    title = {"rounds": "rounds", "bytes": f"sent both ways ({label})", "seconds": "wall-clock time (s)"}[axis]
    figure.update_yaxes(tickformat=percent(metric))
    return sized(figure, 400, title, metric_name(metric), showlegend=True)


def _rounded(pair: tuple[float, float]) -> tuple[float, float]:
    return float(f"{pair[0]:.5g}"), float(f"{pair[1]:.5g}")


def _places(records: Sequence[RoundRecord], axis: str) -> Mapping[int, float]:
    """Where every round lies on an axis: what had been spent when it ended."""
    if axis == "rounds":
        return {r.round: r.round for r in records}
    spent = accumulate(r.seconds if axis == "seconds" else r.bytes_up + r.bytes_down for r in records)
    return {r.round: s for r, s in zip(records, spent, strict=True)}
