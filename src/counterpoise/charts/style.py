"""How charts look: one colour, dash and symbol for each method, and a light and a dark template."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from counterpoise.colours import ACCENT, ALARM, COLOURS, NEUTRAL
from counterpoise.texts import clean, elided

__all__ = [
    "ACCENT",
    "ALARM",
    "NEUTRAL",
    "TEMPLATES",
    "Look",
    "alone",
    "called",
    "elided",
    "escaped",
    "from_zero",
    "look",
    "looks",
    "rows",
    "shade",
    "sized",
    "unit",
    "whole_rounds",
    "words",
    "wrapped",
]

_DASHES = ("solid", "dash", "dot", "dashdot")
_PER_DASH = 6
"""So many colours can be told apart by colour-blind readers, too."""
_SYMBOLS = ("circle", "square", "diamond", "triangle-up")

_EACH = 10
"""If the last round is at most so many after the first, each has its tick. If there are more, plotly puts no tick
between two of them, because it draws about ten."""

_SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
_RAMPS = {"light": ("#d3e2ef", "#7fb2d6", "#0b4a78"), "dark": ("#273d52", "#2f7fb3", "#c3e6ff")}
_INKS = {"light": ("#33373d", "#e4e6ea"), "dark": ("#d5d8dd", "#2e333b")}


class Look(NamedTuple):
    """How a method looks in every chart."""

    colour: str
    dash: str
    symbol: str


def look(place: int) -> Look:
    """The look of the method in this place: a colour of its own for twelve, and another dash and symbol every six."""
    turn = place // _PER_DASH % len(_DASHES)
    return Look(COLOURS[place % len(COLOURS)], _DASHES[turn], _SYMBOLS[turn])


def looks(ranked: Sequence[int]) -> list[Look]:
    """The looks of the methods in these places, the best first.

    Each has the colour and symbol of its place. Of places that differ only by turns of the dash, the best is solid.
    """
    columns = [place % _PER_DASH for place in ranked]
    turns = [columns[:rank].count(column) for rank, column in enumerate(columns)]
    return [look(place)._replace(dash=_DASHES[turn % len(_DASHES)]) for place, turn in zip(ranked, turns, strict=True)]


def shade(colour: str, opacity: float) -> str:
    """A colour that lets some of the background through."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def from_zero(values: Iterable[float | None]) -> dict[str, float]:
    """The ends of a colour axis that begins at zero; plotly ignores one end without the other."""
    found = [0.0, *(value for value in values if value is not None)]
    return {"cmin": min(found), "cmax": max(found) or 1.0}


def words(text: str) -> str:
    """Text for a chart, escaped because charts interpret markup."""
    return html.escape(clean(text), quote=False)


def escaped(text: str) -> str:
    """Text for the page, without markup or control characters."""
    return html.escape(clean(text))


def wrapped(text: str, width: int = 20) -> str:
    """Text for a chart, in at most three lines short enough for a phone, broken between words and parts if it can be."""
    short = elided(text, 3 * width - 8)
    lines = [""]
    for piece in re.findall(r"[^\s:(,]*[:(,]*\s*", short):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    lines = [line.strip() for line in lines if line.strip()]
    if len(lines) > 3 or any(len(line) > width for line in lines):
        lines = textwrap.wrap(short, width)
    return "<br>".join(map(words, lines))


def rows(figure: go.Figure, labels: Sequence[str]) -> go.Figure:
    """Name the places 0, 1, ... of a figure's y axis, from top to bottom."""
    return figure.update_yaxes(
        tickvals=list(range(len(labels))),
        ticktext=list(map(wrapped, labels)),
        ticklabelstandoff=5,  # clear of a dot at the axis
        range=[len(labels) - 0.5, -0.5],
    )


def unit(largest: float, base: str = "B") -> tuple[str, float]:
    """The unit in which numbers up to this one read well, and what to divide them by."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if largest >= scale:
            return prefix + base, scale
    return base, 1.0


def sized(figure: go.Figure, height: int, x: str | None = None, y: str | None = None, **layout: Any) -> go.Figure:
    """Set a figure's height, axis titles and other layout."""
    figure.update_layout(height=height, **layout)
    if x is not None:
        figure.update_xaxes(title_text=x, **(whole_rounds(figure) if x == "rounds" else {}))
    if y is not None:
        figure.update_yaxes(title_text=y)
    return figure


def whole_rounds(figure: go.Figure) -> dict[str, Any]:
    """What an axis of rounds needs so that its ticks are whole rounds, given the figure with its traces."""
    rounds = [at for trace in figure.data for at in (() if trace.x is None else trace.x)] or [0]
    return {"dtick": 1} if max(rounds) - min(rounds) <= _EACH else {}


def alone(figure: go.Figure, title: str = "") -> go.Figure:
    """A figure that stands for itself, on a light background that is readable in every notebook."""
    figure.update_layout(template=TEMPLATES["light"], paper_bgcolor="white", plot_bgcolor="white")
    if title:
        figure.update_layout(title={"text": words(title), "x": 0.02, "font": {"size": 15}}, margin={"t": 60})
    return figure


def called(names: Sequence[str] | None, numbers: Iterable[int]) -> list[str]:
    """What a chart calls these clients or classes: their names, or their numbers if they have none.

    A number goes before the names if some look alike, because a chart's axis joins what has the same name.
    """
    places = list(numbers)
    if names is None:
        return [str(place) for place in places]
    shown = [words(elided(names[place], 28)) if place < len(names) else str(place) for place in places]
    return shown if len({*shown}) == len({*places}) else [f"{i} {name}" for i, name in zip(places, shown, strict=True)]


def _template(theme: str) -> go.layout.Template:
    ink, grid = _INKS[theme]
    axis = {
        "gridcolor": grid,
        "linecolor": grid,
        "tickcolor": grid,
        "zeroline": False,
        "automargin": True,
        "title": {"standoff": 10, "font": {"size": 12.5}},
        "tickfont": {"size": 12},
    }
    ramp = [[i / 2, colour] for i, colour in enumerate(_RAMPS[theme])]
    bar = {
        "orientation": "h",
        "thickness": 8,
        "lenmode": "pixels",
        "len": 280,  # with its title; as much as a phone has room for
        "x": 0,
        "xanchor": "left",
        "yref": "container",
        "y": 0,
        "yanchor": "bottom",
        "outlinewidth": 0,
        "title": {"side": "right", "font": {"size": 12}},
        "tickfont": {"size": 11},
    }
    return go.layout.Template(
        layout={
            "font": {"family": _SANS, "size": 13, "color": ink},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "margin": {"l": 8, "r": 12, "t": 8, "b": 8, "pad": 2},
            "xaxis": axis,
            "yaxis": axis,
            "legend": {
                "orientation": "h",
                "x": 0,
                "xanchor": "left",
                "y": 1.01,
                "yanchor": "bottom",
                "maxheight": 1,  # otherwise it scrolls, and paper hides half of it
                "bgcolor": "rgba(0,0,0,0)",
                "font": {"size": 12.5},
            },
            "coloraxis": {"colorscale": ramp, "colorbar": bar},
            "hoverlabel": {"font": {"family": _SANS, "size": 12.5}},
            "hovermode": "closest",
            "dragmode": "zoom",
            "boxgap": 0.4,
            "bargap": 0.35,
        }
    )


TEMPLATES = {theme: _template(theme) for theme in _INKS}
