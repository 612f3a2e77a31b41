"""Make a chart of many lines readable: names at the lines' ends, the last third enlarged, and bands for a few."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from counterpoise.charts.style import elided, words
from counterpoise.reports.study import Arm

__all__ = ["legend", "readable", "spaced"]

_LETTERS = 20
"""The most letters of a name at a line's end."""
_TAIL = 1 / 3
_POINTS = 9
"""A curve with fewer points is not enlarged."""
_LINE = 16
"""Pixels between two names."""
_MORE = 180
"""Pixels that a narrow page adds for the last third below."""
_NARROW, _SHORT = 300, 36
"""Pixels that a phone or a column has for a legend, and the letters to which the page shortens a name in it."""
_KEY, _LETTER, _KEY_LINE = 44, 7.5, 19
"""Pixels of a legend's sign, of a letter and of a line."""
_EDGES = 80
"""Pixels of a figure's height that its plot does not have."""


def readable(figure: go.Figure, arms: Sequence[Arm], banded: Collection[str] | None = None) -> go.Figure:
    """Hide the bands of lines that are not `banded` until the reader points at them; name and enlarge the ends.

    Lines that end in different places keep a legend instead. The page stacks the parts if it is narrow.
    """
    lines = [trace for trace in figure.data if trace.name]
    for trace in figure.data:
        if trace.fill and banded is not None and trace.legendgroup not in banded:
            trace.opacity = 0
    ends = [trace.x[-1] for trace in lines]
    if len(arms) < 2:
        return figure.update_layout(showlegend=False)
    names = [trace.name for trace in lines]
    if len(lines) < 2 or max(ends) - min(ends) > 0.02 * abs(max(ends)):
        return figure.update_layout(meta={"narrow": legend(figure, names)})
    start = min(min(trace.x) for trace in lines)
    start = max(ends) - _TAIL * (max(ends) - start)
    short = {arm.name: words(elided(arm.label, _LETTERS)) for arm in arms}
    long = max(len(trace.x) for trace in lines) >= _POINTS
    stacked = _enlarge(figure, lines, start) if long else {}
    narrow = {"annotations": [], "margin": {"r": None}} | stacked  # no room for names at the ends
    narrow |= legend(figure, names, narrow.get("height"))
    return _name(figure, lines, short, long).update_layout(meta={"narrow": narrow})


def legend(figure: go.Figure, names: Sequence[str], height: float | None = None) -> dict[str, Any]:
    """What a narrow page changes for a legend above the plot: the figure grows by what the legend takes."""
    beside = max(1, int(_NARROW // (_KEY + _LETTER * min(max(map(len, names), default=0), _SHORT))))
    rows = -(-len(names) // beside)
    return {"showlegend": True, "height": (height or figure.layout.height) + _KEY_LINE * rows}


def _enlarge(figure: go.Figure, lines: Sequence[go.Scatter], start: float) -> dict[str, Any]:
    """A second panel with the last third of every line; returns what a narrow page changes to place it below."""
    shown: list[float] = []
    for trace in lines:
        kept = [place for place, x in enumerate(trace.x) if x >= start]
        shown += [trace.y[place] for place in kept]
        figure.add_scatter(
            x=[trace.x[place] for place in kept],
            y=[trace.y[place] for place in kept],
            customdata=[trace.customdata[place] for place in kept],
            mode="lines",
            line=trace.line,
            hovertemplate=trace.hovertemplate,
            legendgroup=trace.legendgroup,
            showlegend=False,
            xaxis="x2",
            yaxis="y2",
        )
    figure.update_layout(
        xaxis={"domain": [0, 0.54]},
        xaxis2={
            "domain": [0.65, 1],
            "anchor": "y2",
            "title": {"text": f"{figure.layout.xaxis.title.text}, last third"},
        },
        yaxis2={"anchor": "x2", "range": _range(shown), "tickformat": _finer(figure.layout.yaxis.tickformat, shown)},
    )
    return {
        "height": figure.layout.height + _MORE,
        "xaxis": {"domain": [0, 1]},
        "yaxis": {"domain": [0.54, 1]},
        "xaxis2": {"domain": [0, 1]},
        "yaxis2": {"domain": [0, 0.36]},
    }


def _finer(form: str | None, values: Sequence[float]) -> str | None:
    """With a decimal if whole percents would repeat on the axis."""
    return ".1%" if form == ".0%" and max(values) - min(values) < 0.05 else form


def _range(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    edge = 0.06 * (high - low) or 0.01 * abs(high) or 1.0
    return [low - edge, high + edge]


def _name(figure: go.Figure, lines: Sequence[go.Scatter], short: Mapping[str, str], tail: bool) -> go.Figure:
    """Write every line's name at its end instead of a legend."""
    axis = figure.layout.yaxis2 if tail else figure.layout.yaxis
    if axis.range is None:
        bands = [y for trace in figure.data if trace.fill and trace.opacity != 0 for y in trace.y]
        axis.range = _range([*(y for trace in lines for y in trace.y), *bands])
    low, high = axis.range
    gap = (high - low) * _LINE / (figure.layout.height - _EDGES)
    places = spaced([trace.y[-1] for trace in lines], gap, low + gap / 2, high - gap / 2)
    for trace, at in zip(lines, places, strict=True):
        figure.add_annotation(
            name="end",
            text=short.get(trace.name, trace.name),
            font={"color": trace.line.color, "size": 12},
            xref="paper",
            x=1,
            xanchor="left",
            xshift=6,
            yref="y2" if tail else "y",
            y=at,
            showarrow=False,
        )
    longest = max(len(short.get(trace.name, trace.name)) for trace in lines)
    return figure.update_layout(showlegend=False, margin={"r": 16 + 8 * min(longest, _LETTERS)})


def spaced(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The values, moved so that any two are at least a gap apart, and within the range if that has room.

    >>> spaced([0.5, 0.5, 0.9], 0.25, 0.0, 1.0)
    [0.5, 0.75, 1.0]
    """
    order = sorted(range(len(values)), key=lambda place: values[place])
    found = list(values)
    floor = low
    for place in order:
        found[place] = max(found[place], floor)
        floor = found[place] + gap
    ceiling = high
    for place in reversed(order):
        found[place] = min(found[place], ceiling)
        ceiling = found[place] - gap
    return found
