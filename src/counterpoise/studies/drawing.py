"""A study as an SVG file for a Markdown page, drawn without a browser or a plotting library."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from counterpoise.charts.style import ACCENT, NEUTRAL, look
from counterpoise.studies.beside import Beside, beside
from counterpoise.studies.figures import COLOURS
from counterpoise.studies.standing import ClaimRow, Row
from counterpoise.texts import clean

__all__ = ["ahead_of", "drawing"]

_ROW, _TOP, _PLOT, _LETTER = 20, 34, 460, 6.3
"""Pixels: the height of a line, the head's, the width of the plot, and about that of a letter."""


class _Mark(NamedTuple):
    x: float
    half: float
    colour: str
    shape: str
    """dot or diamond"""


class _Line(NamedTuple):
    label: str
    marks: Sequence[_Mark]
    note: str = ""


def drawing(every: Sequence[Row], claims: Sequence[ClaimRow], title: str) -> str:
    """What was published against ours or, if nothing was, every method in every cell. Empty without values.

    Lines are the 95 % intervals of our means, and the published spread or range.
    """
    shown = [row for row in every if row.values]
    if not shown:
        return ""
    if both := beside(every, claims):
        lines = [_Line(one.label, list(_marks(one)), one.verdict) for one in both]
        names = dict.fromkeys(one.verdict for one in both)
        legend = [("published", NEUTRAL, "diamond"), *((f"ours: {v}", COLOURS.get(v, NEUTRAL), "dot") for v in names)]
        return _svg(title, lines, legend, "; ".join(dict.fromkeys(one.unit for one in both)))
    labels = list(dict.fromkeys(row.entry.label for row in shown))
    colours = {label: look(place).colour for place, label in enumerate(labels)}
    lines = []
    for cell in dict.fromkeys(row.cell.name for row in shown):
        lines += [_Line(cell, ())]
        lines += [
            _Line(row.entry.label, [_Mark(row.mean, row.half, colours[row.entry.label], "dot")], f"{row.mean:.2f}")
            for row in shown
            if row.cell.name == cell
        ]
    return _svg(title, lines, [], _units(shown))


def ahead_of(every: Sequence[Row], ours: str, title: str, low: float) -> str:
    """A line for each cell: one method with its 95 % interval, the others in grey. Values below `low` are drawn at it."""
    lines = []
    for cell in dict.fromkeys(row.cell.name for row in every):
        shown = [row for row in every if row.cell.name == cell and row.values]
        marks = [_Mark(max(row.mean, low), 0, "#c3c7ce", "dot") for row in shown if row.entry.label != ours]
        own = [row for row in shown if row.entry.label == ours]
        marks += [_Mark(row.mean, row.half, ACCENT, "dot") for row in own]
        if shown:
            lines.append(_Line(cell, marks, "".join(f"{row.mean:.1f}" for row in own)))
    legend = [(ours, ACCENT, "dot"), ("every other method", "#c3c7ce", "dot")]
    return _svg(title, lines, legend, _units(every[:1]))


def _units(shown: Sequence[Row]) -> str:
    return "; ".join(dict.fromkeys(row.cell.metric.words for row in shown))


def _marks(one: Beside) -> Iterator[_Mark]:
    yield _Mark(one.published, one.reach, NEUTRAL, "diamond")
    yield _Mark(one.ours, one.half, COLOURS.get(one.verdict, NEUTRAL), "dot")


def _svg(title: str, lines: Sequence[_Line], legend: Sequence[tuple[str, str, str]], unit: str) -> str:
    left = 24 + int(_LETTER * max(len(line.label) for line in lines))
    right = 24 + int(_LETTER * max(len(line.note) for line in lines))
    values = [mark.x for line in lines for mark in line.marks]
    low, high, step = _ticks(min(values), max(values))
    top = _TOP + _ROW * bool(legend)
    bottom = top + _ROW * len(lines)
    width, height = left + _PLOT + right, bottom + 48

    def across(x: float) -> float:
        return left + _PLOT * (min(max(x, low), high) - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11" fill="#33373d">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(12, 20, title, ' font-size="13"'),
    ]
    at = 12.0
    for name, colour, shape in legend:
        parts += [_shape(at + 5, _TOP + 6, colour, shape), _text(at + 14, _TOP + 10, name)]
        at += 30 + _LETTER * len(name)
    for number in range(round((high - low) / step) + 1):
        x = across(low + number * step)
        parts.append(f'<path d="M{x:.1f} {top}V{bottom}" stroke="#e4e6ea"/>')
        parts.append(_text(x, bottom + 16, f"{low + number * step:g}", ' text-anchor="middle"'))
    for place, line in enumerate(lines):
        y = top + _ROW * (place + 0.5)
        bold = "" if line.marks else ' font-weight="bold"'
        parts.append(_text(left - 10, y + 4, line.label, f' text-anchor="end"{bold}'))
        parts.append(_text(left + _PLOT + 10, y + 4, line.note))
        for mark in line.marks:
            if mark.half > 0:
                ends = across(mark.x - mark.half), across(mark.x + mark.half)
                parts.append(
                    f'<path d="M{ends[0]:.1f} {y:.1f}H{ends[1]:.1f}" stroke="{mark.colour}" stroke-width="1.4"/>'
                )
            parts.append(_shape(across(mark.x), y, mark.colour, mark.shape))
    parts += [_text(left + _PLOT / 2, bottom + 36, unit, ' text-anchor="middle"'), "</svg>"]
    return "\n".join(parts) + "\n"


def _ticks(low: float, high: float) -> tuple[float, float, float]:
    """The ends of an axis that holds these values with some room, and the step between its ticks."""
    room = max(0.08 * (high - low), 0.5)
    rough = (high - low + 2 * room) / 8
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return math.floor((low - room) / step) * step, math.ceil((high + room) / step) * step, step


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(clean(text))}</text>'


def _shape(x: float, y: float, colour: str, shape: str) -> str:
    if shape == "dot":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'
    return f'<path d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z" fill="white" stroke="{colour}" stroke-width="1.8"/>'
