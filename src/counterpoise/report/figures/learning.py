"""How well and how fast: a metric over rounds, bytes and seconds, and where every seed ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, product

import plotly.graph_objects as go

from counterpoise import measures
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.report.chart import Chart, Missing
from counterpoise.report.study import Arm, Study
from counterpoise.report.style import Look, rows, shade, sized, unit

__all__ = ["OWN", "OWN_DATA", "band", "curves", "every_seed", "final", "metric_curve", "metric_name", "percent"]

_NAMES = {
    "accuracy": "test accuracy",
    "loss": "test loss",
    "train_loss": "training loss",
    "train_accuracy": "training accuracy",
}
_NAMES |= {f"own_{metric}": f"personal {metric}" for metric in ("accuracy", "loss")}
OWN = "personal models"
OWN_DATA = "clients' held-out data: a personal model if the method makes one, otherwise the server's"
_POINTS = 400
"""Most points of a curve; a longer one is shown at evenly spaced rounds."""


def metric_name(metric: str) -> str:
    """A metric's name for people."""
    return _NAMES.get(metric, metric.replace("_", " "))


def metric_curve(records: Sequence[RoundRecord], metric: str) -> measures.Curve:
    """A metric on the test set; ``own_...`` is the mean over clients by the model that each would use."""
    own = metric.removeprefix("own_")
    return measures.curve(records, metric) if own == metric else measures.own_curve(records, own)


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


def curves(study: Study) -> Chart | Missing:
    """Every metric against rounds, bytes sent and seconds."""
    title = "Learning curves"
    metrics = [metric for metric in study.metrics if any(_common(arm, metric) for arm in study.arms)]
    if not metrics:
        return Missing(
            title, "No round was evaluated: the runs have no test set, or were stopped before a first round."
        )
    axes = ("rounds", "bytes", "seconds")
    metrics += [f"own_{study.metric}"] if study.personal else []
    figures: dict[tuple[str, ...], go.Figure] = {
        (metric_name(m), axis): _curve(study, m, axis) for m, axis in product(metrics, axes)
    }
    lines = "Lines are means over seeds" if len(study.seeds) > 1 else "One seed"
    deviation = (
        ", bands one sample deviation either side, at rounds that all seeds measured" if len(study.seeds) > 1 else ""
    )
    return Chart(
        "curves",
        title,
        figures,
        {"Show": [metric_name(m) for m in metrics], "against": axes},
        f"{lines}{deviation}. Bytes are those sent both ways; seconds are wall-clock time of the rounds.",
    )


def _common(arm: Arm, metric: str) -> list[int]:
    """The rounds in which all of a method's runs measured a metric, thinned out if there are many."""
    found = [{r for r, v in metric_curve(run.records, metric) if math.isfinite(v)} for run in arm.runs]
    rounds = sorted(set.intersection(*found)) if found else []
    step = -(-len(rounds) // _POINTS)
    return rounds if step <= 1 else sorted({*rounds[::step], rounds[-1]})


def _curve(study: Study, metric: str, axis: str) -> go.Figure:
    figure = go.Figure()
    places = [[_places(run.records, axis) for run in arm.runs] for arm in study.arms]
    label, scale = {
        "rounds": ("rounds", 1.0),
        "bytes": unit(max((max(p.values(), default=0) for arm in places for p in arm), default=0)),
        "seconds": ("seconds", 1.0),
    }[axis]
    shown = ".2%" if percent(metric) else ".4g"
    for arm, place in zip(study.arms, places, strict=True):
        rounds = _common(arm, metric)
        if not rounds:
            continue
        values = [dict(metric_curve(run.records, metric)) for run in arm.runs]
        x = [round(sum(p[r] for p in place) / len(place) / scale, 4) for r in rounds]
        across = [_rounded(measures.across_seeds([v[r] for v in values])) for r in rounds]
        band(figure, arm.name, arm.look, x, across, f"%{{y:{shown}}}", rounds)
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


def every_seed(figure: go.Figure, row: int, arm: Arm, values: Mapping[int, float], hover: str) -> None:
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
        )


def final(study: Study) -> Chart | Missing:
    """Where every seed ended: on the test set, and by personal models if a method makes them."""
    what = study.metric if study.personal else metric_name(study.metric)
    title = f"{what.capitalize()} after the last round"
    views = {"the server's model": study.metric} | ({OWN: f"own_{study.metric}"} if study.personal else {})
    found = {view: figure for view, metric in views.items() if (figure := _ends(study, metric)) is not None}
    if not found:
        return Missing(title, f"No run measured a finite {metric_name(study.metric)}.")
    spread = "; the bar is their mean, the line one sample deviation either side" if len(study.seeds) > 1 else ""
    own = f" Personal models are measured on {OWN_DATA}." if len(found) > 1 else ""
    figures: dict[tuple[str, ...], go.Figure]
    figures = {(view,): figure for view, figure in found.items()} if own else {(): next(iter(found.values()))}
    return Chart("final", title, figures, {"By": list(found)} if own else {}, f"Every dot is a seed{spread}.{own}")


def _ends(study: Study, metric: str) -> go.Figure | None:
    figure, shown = go.Figure(), list[str]()
    for arm in study.arms:
        ends = {run.seed: measures.last(metric_curve(run.records, metric)) for run in arm.runs}
        ends = {seed: value for seed, value in ends.items() if math.isfinite(value)}
        if ends:
            every_seed(figure, len(shown), arm, ends, "%{x:.2%}" if percent(metric) else "%{x:.4g}")
            shown.append(arm.label)
    if not shown:
        return None
    if percent(metric):
        figure.update_xaxes(
            tickformat=".1%", minallowed=-0.02, maxallowed=1.02
        )  # otherwise a lone dot's axis goes to 150 %
    return sized(rows(figure, shown), 90 + 46 * len(shown), metric_name(metric), "")
