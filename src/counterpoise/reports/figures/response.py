"""How a result changes with the setting that a sweep changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from counterpoise import measures
from counterpoise.charts.style import NEUTRAL, elided, look, shade, sized, words
from counterpoise.measures import Standing, is_share
from counterpoise.reports.chart import Chart
from counterpoise.reports.figures.readable import legend, spaced
from counterpoise.reports.study import Study
from counterpoise.runs.plots import metric_name, percent

__all__ = ["response"]

_DASHES = ("solid", "dash", "dot", "dashdot")
_WIDE = 20
"""A setting whose largest value is this many times its smallest has a logarithmic axis."""


class _Point(NamedTuple):
    at: float
    ends: list[float]
    """One for each seed."""
    colour: str


def response(study: Study) -> Chart | None:
    """The metric against a swept number, with a line for every choice of the other settings; None without a number.

    With several numbers, a switch chooses the one along the axis.
    """
    keys = _numeric(study.swept)
    drawn = {study.keys[key]: figure for key in keys if (figure := _against(study, key)) is not None}
    if not drawn:
        return None
    what = metric_name(study.standing.metric)
    even = [study.keys[key] for key in keys if _even(_values(study, key))]
    said = [
        "A setting has the colour that it has everywhere.",
        "Small dots are seeds; the line joins their means." if len(study.seeds) > 1 else "",
        f"The values of {' and '.join(even)} are evenly spaced." if even else "",
    ]
    several = len(drawn) > 1
    return Chart(
        "response",
        f"{what.capitalize()} after the last round{'' if several else f', by {next(iter(drawn))}'}",
        {(name,) if several else (): figure for name, figure in drawn.items()},
        {"By": list(drawn)} if several else {},
        " ".join(filter(None, said)),
    )


def _against(study: Study, key: str) -> go.Figure | None:
    """The metric against one setting."""
    lines: dict[str, list[_Point]] = {}
    for place, row in enumerate(study.standing.rows):
        values = study.swept.get(row.label, {})
        if ends := _finite(row):
            others = ", ".join(f"{study.keys[name]}={value}" for name, value in values.items() if name != key)
            lines.setdefault(others, []).append(_Point(float(values[key]), ends, look(place).colour))
    if not lines:
        return None
    figure = go.Figure()
    at = _values(study, key)
    even = _even(at)
    for place, (name, points) in enumerate(lines.items()):
        where = [at.index(point.at) if even else point.at for point in sorted(points)]
        _line(figure, _DASHES[place % len(_DASHES)], words(elided(name)), where, sorted(points), study)
    figure.update_xaxes(
        type="log" if _wide(at) and not even else "linear",
        tickvals=list(range(len(at))) if even else at,
        ticktext=[f"{x:g}" for x in at],
        tickangle=0,
    )
    figure.update_yaxes(tickformat=percent(study.metric))
    sized(figure, 340, words(study.keys[key]), metric_name(study.standing.metric), showlegend=False)
    return _names(figure) if len(lines) > 1 else figure


def _finite(row: Standing) -> list[float]:
    return [value for value in row.values.values() if math.isfinite(value)]


def _values(study: Study, key: str) -> list[float]:
    """The values of a setting that have a result."""
    return sorted({float(study.swept[row.label][key]) for row in study.standing.rows if _finite(row)})


def _even(values: Sequence[float]) -> bool:
    """Whether to space values evenly: they need a logarithm, which has no place for zero."""
    return _wide(values) and values[0] <= 0


def _wide(values: Sequence[float]) -> bool:
    """Whether the positive values span so much that the small ones would lie on top of one another."""
    above = [value for value in values if value > 0]
    return len(above) > 1 and min(values) >= 0 and max(above) / min(above) >= _WIDE


def _names(figure: go.Figure) -> go.Figure:
    """Every line's name at its end; a narrow page has a legend instead."""
    lines = [trace for trace in figure.data if trace.name]
    ys = [y for trace in figure.data for y in trace.y]
    low, high = min(ys), max(ys)
    edge = 0.06 * (high - low) or 0.01
    gap = (high - low + 2 * edge) * 16 / 260
    figure.update_yaxes(range=[low - edge, high + edge])
    for trace, y in zip(lines, spaced([trace.y[-1] for trace in lines], gap, low, high), strict=True):
        figure.add_annotation(
            text=trace.name, x=1, xref="paper", xanchor="left", xshift=6, y=y, showarrow=False, font={"size": 12}
        )
    narrow = {"annotations": [], "margin": {"r": None}} | legend(figure, [trace.name for trace in lines])
    room = 16 + 8 * min(max(len(trace.name) for trace in lines), 30)
    return figure.update_layout(margin={"r": room}, meta={"narrow": narrow})


def _numeric(swept: dict[str, dict[str, Any]]) -> list[str]:
    """The settings that have several values, all of them numbers; the one with most values first."""
    keys = dict.fromkeys(key for values in swept.values() for key in values)
    found = {key: {values.get(key) for values in swept.values() if _hashable(values.get(key))} for key in keys}
    real = [
        key
        for key, values in found.items()
        if len(values) > 1 and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    ]
    return sorted(real, key=lambda key: -len(found[key]))


def _hashable(value: Any) -> bool:
    return not isinstance(value, list | dict)


def _line(
    figure: go.Figure, dash: str, name: str, where: Sequence[float], points: Sequence[_Point], study: Study
) -> None:
    hover = "%{y:.2%}" if is_share(study.standing.metric) else "%{y:.4g}"
    figure.add_scatter(
        x=[x for x, point in zip(where, points, strict=True) for _ in point.ends],
        y=[end for point in points for end in point.ends],
        mode="markers",
        marker={"color": [shade(point.colour, 0.7) for point in points for _ in point.ends], "size": 7},
        customdata=[f"{point.at:g}" for point in points for _ in point.ends],
        hovertemplate=f"%{{customdata}}: {hover}<extra></extra>",
        legendgroup=name,
        showlegend=False,
    )
    means = [measures.across_seeds(point.ends)[0] for point in points]
    figure.add_scatter(  # apart from its dots, because a legend would show the colour of the first
        x=list(where),
        y=means,
        mode="lines",
        name=name,
        legendgroup=name,
        line={"color": NEUTRAL, "dash": dash, "width": 1.5},
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=list(where),
        y=means,
        mode="markers",
        legendgroup=name,
        showlegend=False,
        marker={"color": [point.colour for point in points], "size": 11},
        customdata=[f"{point.at:g}" for point in points],
        hovertemplate=f"{name}<br>%{{customdata}}, mean: {hover}<extra></extra>",
    )
