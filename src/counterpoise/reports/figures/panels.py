"""Small multiples: panels side by side, which a narrow page, a phone or a paper's column stacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from counterpoise.charts.style import rows, sized

__all__ = ["axes", "lay_out", "row_panels"]

_ROW = 34
"""Pixels of a row of dots or bars."""
_LOW_ROW = 24
"""The same on a narrow page, where panels stand below each other."""
_AXIS = 66
"""Pixels below a panel for its axis and the axis's title."""
_GAP, _WIDE_GAP = 0.05, 0.09
"""The share of the width between two panels; the second if each numbers its own y axis."""


def axes(place: int) -> dict[str, str]:
    """The axes of the panel in this place, for a trace."""
    return {"xaxis": f"x{place + 1}" if place else "x", "yaxis": f"y{place + 1}" if place else "y"}


def lay_out(
    figure: go.Figure,
    panels: Sequence[Mapping[str, Any]],
    tall: int,
    below: int,
    columns: int,
    *,
    above: int = 0,
    bare: bool = False,
    low: int | None = None,
) -> go.Figure:
    """Place panels in a grid, and keep in the figure's `meta` what a narrow page changes in order to stack them.

    A panel is its ``x`` and ``y`` axis and its ``note``, a name above it; `tall` is its height, with `below` for its
    axis and `above` for its name, and `low` its height if panels are stacked. In `bare` grids only the lowest panels number their x axis, because all share it.
    """
    wide, notes = _grid(panels, tall, below, above, columns, bare)
    narrow, stacked = _grid(panels, tall if low is None else low, below, above, 1, bare)
    for place, panel in enumerate(panels):
        figure.update_layout({f"{axis}axis{place + 1 if place else ''}": panel[axis] for axis in "xy"})
    figure.update_layout(wide)
    figure.update_layout(annotations=notes, meta={"narrow": narrow | {"annotations": stacked}})
    return figure


def _grid(
    panels: Sequence[Mapping[str, Any]], tall: int, below: int, above: int, columns: int, bare: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Layout and names of a grid with so many columns."""
    down, between = -(-len(panels) // columns), 14 if bare else below
    plot = down * (tall + above) + (down - 1) * between
    layout: dict[str, Any] = {"height": plot + below}
    notes = []
    gap = _GAP if all(panel["y"].get("matches") for panel in panels[1:]) else _WIDE_GAP
    share = (1 - (columns - 1) * gap) / columns
    for place, panel in enumerate(panels):
        row, column = divmod(place, columns)
        top = 1 - (row * (tall + above + between) + above) / plot
        lowest = not bare or place + columns >= len(panels)
        left, number = column * (share + gap), place + 1 if place else ""
        layout[f"xaxis{number}"] = {
            "domain": [left, left + share],
            "anchor": f"y{number}",
            "showticklabels": lowest,
            "title": {"text": panel["x"].get("title", {}).get("text", "") if lowest else ""},
        }
        named = not column or not panel["y"].get("matches")
        layout[f"yaxis{number}"] = {
            "domain": [max(0.0, top - tall / plot), top],
            "anchor": f"x{number}",
            "showticklabels": named,
            "title": {"text": panel["y"].get("title", {}).get("text", "") if named else ""},
        }
        if panel.get("note"):
            notes.append(dict(panel["note"], x=left, xref="paper", xanchor="left", y=top, yref="paper"))
    return layout, [note | {"yanchor": "bottom", "showarrow": False} for note in notes]


def row_panels(figure: go.Figure, labels: Sequence[str], titles: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Panels with the same rows, named at the left; each has its own x axis, of which `titles` says the settings."""
    named = rows(go.Figure(), labels).layout.yaxis.to_plotly_json()
    panels = [{"x": x, "y": named | ({"matches": "y"} if place else {})} for place, x in enumerate(titles)]
    lines = max((text.count("<br>") + 1 for text in named["ticktext"]), default=1)
    tall, low = (max(row, 16 * lines + 6) * max(len(labels), 1) + 10 for row in (_ROW, _LOW_ROW))
    return sized(lay_out(figure, panels, tall, _AXIS, len(panels), low=low), tall + _AXIS, showlegend=False)
