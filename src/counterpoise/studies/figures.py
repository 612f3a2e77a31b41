"""A study as charts: published values against ours, and every method in every cell."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from counterpoise.charts.style import ACCENT, ALARM, NEUTRAL, look, rows, sized, words
from counterpoise.reports.chart import Chart
from counterpoise.studies.beside import beside
from counterpoise.studies.standing import ClaimRow, Row

__all__ = ["COLOURS", "against_published", "by_cell"]

COLOURS = {"agrees": "#009E73", "higher": ACCENT, "lower": ALARM}
"""By verdict; all others are neutral."""


def against_published(every: Sequence[Row], claims: Sequence[ClaimRow] = ()) -> Chart | None:
    """Each published value or lead beside ours; None if nothing was published or has been run."""
    shown = beside(every, claims)
    if not shown:
        return None
    figure = go.Figure()
    verdicts = list(dict.fromkeys(one.verdict for one in shown))
    for verdict in verdicts:
        some = [(place, one) for place, one in enumerate(shown) if one.verdict == verdict]
        figure.add_scatter(
            x=[one.ours for _, one in some],
            y=[place for place, _ in some],
            name=words(f"ours: {verdict}"),
            mode="markers",
            marker={"color": COLOURS.get(verdict, NEUTRAL), "size": 9},
            error_x=_bars([one.half for _, one in some], COLOURS.get(verdict, NEUTRAL)),
            hovertemplate="%{x:.2f}<extra></extra>",
        )
    figure.add_scatter(
        x=[one.published for one in shown],
        y=list(range(len(shown))),
        name="published",
        mode="markers",
        marker={"symbol": "diamond-open", "size": 11, "color": NEUTRAL, "line": {"width": 2}},
        error_x=_bars([one.reach for one in shown], NEUTRAL),
        hovertemplate="published: %{x:.2f}<extra></extra>",
    )
    unit = "; ".join(dict.fromkeys(one.unit for one in shown))
    return Chart(
        "published",
        "Published against ours",
        {(): sized(rows(figure, [one.label for one in shown]), 120 + 34 * len(shown), unit, "", showlegend=True)},
        caption="Lines: the 95 % interval of our mean or lead over seeds, and the published spread or range if there is one.",
    )


def by_cell(every: Sequence[Row]) -> Chart | None:
    """Every method in every cell; None if nothing has been run."""
    shown = [row for row in every if row.values]
    if not shown:
        return None
    cells = list(dict.fromkeys(row.cell.name for row in shown))
    figure = go.Figure()
    labels = list(dict.fromkeys(row.entry.label for row in shown))
    for number, label in enumerate(labels):
        style, some = look(number), [row for row in shown if row.entry.label == label]
        offset = 0.6 * ((number + 0.5) / len(labels) - 0.5)  # so that intervals do not lie on each other
        figure.add_scatter(
            x=[row.mean for row in some],
            y=[cells.index(row.cell.name) + offset for row in some],
            name=words(label),
            mode="markers",
            marker={"color": style.colour, "symbol": style.symbol, "size": 8},
            error_x=_bars([row.half for row in some], style.colour),
            hovertemplate=f"{words(label)}: %{{x:.2f}}<extra></extra>",
        )
    height = 140 + max(46, 14 * len(labels)) * len(cells)
    return Chart(
        "cells",
        "Methods by cell",
        {(): sized(rows(figure, cells), height, _unit(shown), "", showlegend=True)},
        caption="Points are means over seeds, lines their 95 % intervals.",
    )


def _bars(halves: Sequence[float], colour: str) -> dict[str, object]:
    return {
        "array": [0.0 if math.isnan(half) else half for half in halves],
        "color": colour,
        "thickness": 1.4,
        "width": 0,
    }


def _unit(shown: Sequence[Row]) -> str:
    return "; ".join(dict.fromkeys(row.cell.metric.words for row in shown))
