"""How a result changes with the setting that a sweep changes."""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go

from counterpoise import measures
from counterpoise.charts.style import elided, look, shade, sized, words
from counterpoise.measures import is_share
from counterpoise.reports.chart import Chart
from counterpoise.reports.study import Study
from counterpoise.runs.plots import metric_name, percent

__all__ = ["response"]

_WIDE = 20
"""A setting whose largest value is this many times its smallest has a logarithmic axis."""


def response(study: Study) -> Chart | None:
    """The metric against a swept number, with a line for every choice of the other settings; None without a number."""
    key = _numeric(study.swept)
    if key is None:
        return None
    lines: dict[str, list[tuple[float, list[float]]]] = {}
    for row in study.standing.rows:
        values = study.swept.get(row.label, {})
        ends = [value for value in row.values.values() if math.isfinite(value)]
        if ends:
            others = ", ".join(f"{name}={value}" for name, value in values.items() if name != key)
            lines.setdefault(others, []).append((float(values[key]), ends))
    if not lines:
        return None
    figure = go.Figure()
    for place, (name, points) in enumerate(lines.items()):
        _line(figure, place, words(elided(name)), sorted(points), is_share(study.standing.metric))
    at = [x for points in lines.values() for x, _ in points]
    wide = min(at) > 0 and max(at) / min(at) >= _WIDE
    figure.update_xaxes(
        type="log" if wide else "linear", tickvals=sorted({*at}), ticktext=[f"{x:g}" for x in sorted({*at})]
    )
    figure.update_yaxes(tickformat=percent(study.metric))
    what = metric_name(study.standing.metric)
    many = any(len(ends) > 1 for points in lines.values() for _, ends in points)
    spread = " Every dot is a seed; the line joins their means." if many else ""
    title = f"{what.capitalize()} by {words(elided(key))}"
    return Chart(
        "response",
        f"{what.capitalize()} by {key}",
        {(): sized(figure, 340, words(key), what, showlegend=len(lines) > 1)},
        caption=f"{title} after the last round.{spread}",
    )


def _numeric(swept: dict[str, dict[str, Any]]) -> str | None:
    """The setting with most values, if all of them are numbers."""
    keys = dict.fromkeys(key for values in swept.values() for key in values)
    found = {key: {values.get(key) for values in swept.values() if _hashable(values.get(key))} for key in keys}
    real = {
        key: len(values)
        for key, values in found.items()
        if len(values) > 1 and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    }
    return max(real, key=lambda key: real[key]) if real else None


def _hashable(value: Any) -> bool:
    return not isinstance(value, list | dict)


def _line(figure: go.Figure, place: int, name: str, points: list[tuple[float, list[float]]], share: bool) -> None:
    style, hover = look(place), "%{y:.2%}" if share else "%{y:.4g}"
    figure.add_scatter(
        x=[x for x, ends in points for _ in ends],
        y=[end for _, ends in points for end in ends],
        mode="markers",
        marker={"color": shade(style.colour, 0.45), "symbol": style.symbol, "size": 8},
        hovertemplate=f"%{{x}}: {hover}<extra></extra>",
        legendgroup=name,
        showlegend=False,
    )
    figure.add_scatter(
        x=[x for x, _ in points],
        y=[measures.across_seeds(ends)[0] for _, ends in points],
        mode="lines+markers",
        name=name,
        legendgroup=name,
        line={"color": style.colour, "dash": style.dash, "width": 2},
        marker={"color": style.colour, "symbol": style.symbol, "size": 10},
        hovertemplate=f"{name}<br>%{{x}}, mean: {hover}<extra></extra>",
    )
