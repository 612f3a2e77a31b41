"""Small pictures and tables in HTML, for notebooks. Every text is escaped here: names are whatever somebody wrote.

They carry their styles with them and take the colour of the text around them, so they suit light and dark notebooks.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from counterpoise.colours import ACCENT, COLOURS, NEUTRAL
from counterpoise.texts import clean

__all__ = ["boxes", "card", "dots", "escaped", "heat", "lines", "table"]

_WIDTH = 280
_FONT = "font-family:system-ui,sans-serif;font-size:13px"
_SMALL = 'font-size="10" fill="currentColor" font-family="system-ui,sans-serif"'
_CELLS = 40, 12
"""The most clients and labels of a heat map."""


def escaped(text: object, most: int = 0) -> str:
    """Text without markup and control characters, and without its middle if it is longer than `most`.

    >>> escaped("<b>&"), escaped("abcdefghij", 5)
    ('&lt;b&gt;&amp;', 'ab…ij')
    """
    shown = clean(str(text))
    if most and len(shown) > most:
        shown = f"{shown[: most // 2]}…{shown[len(shown) - (most - 1) // 2 :]}"
    return html.escape(shown)


def card(title: str, picture: str, *tables: str) -> str:
    """A title over a picture, with tables beside it."""
    beside = "".join(f"<div>{one}</div>" for one in tables)
    return (
        f'<div style="display:flex;flex-wrap:wrap;gap:24px;align-items:flex-start;{_FONT}">'
        f'<div><div style="font-weight:600;margin-bottom:4px">{escaped(title)}</div>{picture}</div>{beside}</div>'
    )


def table(rows: Iterable[Sequence[object]], heads: Sequence[str] = ()) -> str:
    """Rows of texts; the first of each row names it."""
    cell = "padding:1px 8px;border:0;text-align:left;vertical-align:top"
    top = "".join(f'<th style="{cell}">{escaped(head)}</th>' for head in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="{cell}">{escaped(one, 120)}</td>' for one in row) + "</tr>" for row in rows
    )
    return f'<table style="border-collapse:collapse;{_FONT}">{f"<tr>{top}</tr>" if top else ""}{body}</table>'


def lines(curves: Sequence[Sequence[tuple[float, float]]], percent: bool) -> str:
    """Curves of ``(round, value)``, each in its colour; the lowest and highest value and the last round are written."""
    found = [[(x, y) for x, y in curve if math.isfinite(y)] for curve in curves]
    points = [point for curve in found for point in curve]
    if not points:
        return ""
    left, top, wide, tall = 44, 8, _WIDTH - 56, 84
    low, high = min(y for _, y in points), max(y for _, y in points)
    first, last = min(x for x, _ in points), max(x for x, _ in points)

    def place(x: float, y: float) -> tuple[float, float]:
        return left + wide * (x - first) / ((last - first) or 1), top + tall * (high - y) / ((high - low) or 1)

    drawn = []
    for number, curve in enumerate(found):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in curve)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        for x, y in [place(*point) for point in curve[-1:]]:
            drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}"/>')
    show = "{:.1%}".format if percent else "{:.3g}".format
    drawn += [_text(left - 6, top + 8, show(high), "end"), _text(left - 6, top + tall, show(low), "end")]
    drawn += [_text(left + wide, top + tall + 14, f"round {last:g}", "end")]
    return _svg(_WIDTH, top + tall + 20, drawn)


def heat(counts: Sequence[Sequence[int]]) -> str:
    """Samples by client (across) and label (down), and every client's total as a bar below.

    Clients and labels beyond the size of the picture are left out; the caller says how many there are.
    """
    shown = [row[: _CELLS[1]] for row in counts[: _CELLS[0]]]
    if not shown or not shown[0]:
        return ""
    across, down, bars = _WIDTH / len(shown), 90 / len(shown[0]), 24
    most = max((max(row) for row in shown), default=0) or 1
    shades: dict[int, list[str]] = {}
    for client, row in enumerate(shown):
        for label, count in enumerate(row):
            if count:
                cell = f"M{client * across:.1f} {label * down:.1f}h{across:.1f}v{down:.1f}h{-across:.1f}z"
                shades.setdefault(math.ceil(4 * count / most), []).append(cell)
    drawn = [
        f'<path d="{"".join(cells)}" fill="{ACCENT}" fill-opacity="{level / 4:g}"/>'
        for level, cells in sorted(shades.items())
    ]
    sizes = [sum(row) for row in counts[: _CELLS[0]]]
    heights = [bars * size / (max(sizes) or 1) for size in sizes]
    bar = "".join(
        f"M{client * across:.1f} {96 + bars:.1f}v{-high:.1f}h{across * 0.8:.1f}v{high:.1f}z"
        for client, high in enumerate(heights)
    )
    return _svg(_WIDTH, 96 + bars, [*drawn, f'<path d="{bar}" fill="{NEUTRAL}"/>'])


def dots(rows: Sequence[tuple[str, Sequence[float]]], percent: bool) -> str:
    """A row of dots for each name, in the order of their colours, and a bar at their mean."""
    found = [(name, [value for value in values if math.isfinite(value)]) for name, values in rows]
    values = [value for _, some in found for value in some]
    if not values:
        return ""
    low, high = min(values), max(values)
    left, wide, tall = 110, _WIDTH - 126, 18

    def place(value: float) -> float:
        return left + (wide * (value - low) / (high - low) if high > low else wide / 2)

    drawn = []
    for number, (name, some) in enumerate(found):
        y, colour = 12 + number * tall, COLOURS[number % len(COLOURS)]
        drawn.append(_text(left - 10, y + 3, escaped(name, 18), "end"))
        drawn += [f'<circle cx="{place(v):.1f}" cy="{y}" r="3" fill="{colour}" fill-opacity="0.6"/>' for v in some]
        if some:
            mean = place(sum(some) / len(some))
            drawn.append(f'<path d="M{mean:.1f} {y - 6}v12" stroke="{colour}" stroke-width="2"/>')
    show, base = "{:.1%}".format if percent else "{:.3g}".format, 14 + len(found) * tall
    drawn += [_text(left, base + 8, show(low), "middle"), _text(left + wide, base + 8, show(high), "middle")]
    return _svg(_WIDTH + 16, base + 14, drawn)


def boxes(columns: Sequence[tuple[str, Sequence[tuple[str, bool]]]]) -> str:
    """Columns from left to right, each with a heading and boxes below it; boxes that are on are filled."""
    wide, tall = 96, 20
    deepest = max((len(names) for _, names in columns), default=0)
    drawn = []
    for number, (head, names) in enumerate(columns):
        x = number * (wide + 6)
        drawn.append(_text(x + wide / 2, 11, escaped(head), "middle"))
        for row, (name, on) in enumerate(names):
            y = 18 + row * (tall + 4)
            fill = f'fill="{ACCENT}" fill-opacity="0.22"' if on else 'fill="none"'
            drawn.append(
                f'<rect x="{x + 0.5}" y="{y + 0.5}" width="{wide - 1}" height="{tall}" rx="4" {fill} '
                f'stroke="{ACCENT if on else NEUTRAL}" stroke-opacity="{1 if on else 0.5}"/>'
            )
            drawn.append(_text(x + wide / 2, y + 14, escaped(name, 15), "middle"))
    return _svg(len(columns) * (wide + 6), 18 + max(deepest, 1) * (tall + 4) + 2, drawn)


def _text(x: float, y: float, escaped: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {_SMALL}>{escaped}</text>'


def _svg(width: float, height: float, drawn: Iterable[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}">{"".join(drawn)}</svg>'
    )
