"""The page: sections of charts and tables in one HTML file that needs no network."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib import resources
from itertools import product
from string import Template
from typing import Any

import plotly.io
from plotly.offline import get_plotlyjs

from counterpoise import __version__
from counterpoise.charts.style import TEMPLATES, escaped
from counterpoise.comparisons.plan import slugs
from counterpoise.reports.chart import Chart, Listing, Missing, Note, Section, Table

__all__ = ["figures", "page"]


_LONG = 28
"""A column with a cell of more letters may be broken into lines."""


_DENSE = 9
"""A table with more columns has smaller letters."""
_PAIRS = 8
"""A table of two columns with more rows is set in columns, side by side."""


_SAVES = (("svg", "page", "SVG"), ("png", "page", "PNG"), ("svg", "column", "SVG, one column"))
"""The links beside a chart: format, width, words."""


def page(title: str, lead: str, sections: Sequence[Section], footer: str) -> str:
    """The whole file. `lead` and `footer` are markup; every other text is escaped here."""
    charts = [part for section in sections for part in section.parts if isinstance(part, Chart)]
    contents = "".join(f'<a href="#{s.key}">{escaped(s.title)}</a>' for s in sections)
    return Template(_asset("page.html")).substitute(
        version=__version__,
        title=escaped(title),
        css=_asset("page.css"),
        js=_asset("page.js"),
        lead=lead,
        contents=contents,
        body="\n".join(map(_section, sections)),
        footer=footer,
        plotly=get_plotlyjs(),
        payload=_payload(charts),
    )


def figures(charts: Sequence[Chart]) -> list[tuple[Chart, str, tuple[str, ...], str]]:
    """Every figure: its chart, its choice of switches by number (as the page has it) and by name, and a file name."""
    found = [
        (chart, "|".join(str(number) for number, _ in chosen), tuple(choice for _, choice in chosen))
        for chart in charts
        for chosen in product(*(enumerate(choices) for choices in chart.switches.values()))
    ]
    names = slugs(["-".join((chart.key, *choice)) for chart, _, choice in found])
    return [(*one, name) for one, name in zip(found, names, strict=True)]


def _asset(name: str) -> str:
    return resources.files("counterpoise.reports").joinpath("assets", name).read_text(encoding="utf-8")


def _payload(charts: Sequence[Chart]) -> str:
    """Every figure and both templates, as JSON that no HTML parser can mistake for markup."""
    drawn: dict[str, dict[str, Any]] = {chart.key: {} for chart in charts}
    for chart, numbers, choice, name in figures(charts):
        drawn[chart.key][numbers] = {"file": name, **_figure(chart, choice)}
    templates = {name: template.to_plotly_json() for name, template in TEMPLATES.items()}
    text = json.dumps({"charts": drawn, "templates": templates}, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _figure(chart: Chart, choice: tuple[str, ...]) -> dict[str, Any]:
    figure: dict[str, Any] = json.loads(plotly.io.to_json(chart.figures[choice], validate=False))
    figure["layout"].pop("template", None)
    return {"data": figure["data"], "layout": figure["layout"]}


def _section(section: Section) -> str:
    text = f"<p>{escaped(section.text)}</p>" if section.text else ""
    parts = "\n".join(map(_part, section.parts))
    return f'<section id="{section.key}">\n<h2>{escaped(section.title)}</h2>\n{text}\n{parts}\n</section>'


def _part(part: Chart | Table | Missing | Note | Listing) -> str:
    match part:
        case Chart():
            return _chart(part)
        case Table():
            return _table(part)
        case Missing():
            return f'<p class="missing"><strong>{escaped(part.title)}.</strong> {escaped(part.reason)}</p>'
        case Note():
            return f'<p class="note"><strong>{escaped(part.title)}.</strong> {_minus(escaped(part.text))}</p>'
        case Listing():
            before = f"<p>{escaped(part.before)}</p>" if part.before else ""
            if part.open:
                return f"<h3>{escaped(part.title)}</h3>{before}<pre>{_command(part.text)}</pre>"
            commands = f"<pre>{_command(chr(10).join(part.commands))}</pre>" if part.commands else ""
            body = f"{before}{commands}<pre>{escaped(part.text)}</pre>"
            return f"<details><summary>{escaped(part.title)}</summary>{body}</details>"


def _command(text: str) -> str:
    """A command in which no line ends within an option's name."""
    return re.sub(r"--[a-z]+", r"<span>\g<0></span>", escaped(text))


def _chart(chart: Chart) -> str:
    switches = "".join(
        f'<div class="switch" role="group" aria-label="{escaped(what)}"><span>{escaped(what)}</span>'
        + "".join(
            f'<button type="button" value="{number}" aria-pressed="{"false" if number else "true"}">{escaped(choice)}</button>'
            for number, choice in enumerate(choices)
        )
        + "</div>"
        for what, choices in chart.switches.items()
    )
    saves = "".join(
        f'<button type="button" data-save="{form}" data-width="{width}">{words}</button>'
        for form, width, words in _SAVES
    )
    return (
        f'<figure data-chart="{chart.key}">\n<div class="top"><h3>{escaped(chart.title)}</h3>'
        f'<span class="save">{saves}</span></div>\n'
        + (f'<div class="switches">{switches}</div>\n' if switches else "")
        + f'<div class="chart" id="chart-{chart.key}" role="img" aria-label="{escaped(chart.title)}"></div>\n'
        + f"<figcaption>{_minus(escaped(chart.caption))}</figcaption>\n</figure>"
    )


def _table(table: Table) -> str:
    kinds = [_kind([row[place] for row in table.rows]) for place in range(len(table.columns))]
    heads = "".join(
        f'<th scope="col"{_class(kind and "text")}>{escaped(head)}</th>'
        for head, kind in zip(table.columns, kinds, strict=True)
    )
    colours, marks = table.colours or [None] * len(table.rows), table.marks or [""] * len(table.rows)
    rows = "\n".join(_row(table.columns, kinds, *row) for row in zip(table.rows, colours, marks, strict=True))
    caption = f"<figcaption>{_minus(escaped(table.caption))}</figcaption>" if table.caption else ""
    form = "pairs" if len(table.columns) == 2 and len(table.rows) > _PAIRS else "dense" * (len(table.columns) > _DENSE)
    return (
        f'<figure id="table-{table.key}">\n<h3>{escaped(table.title)}</h3>\n'
        f'<div class="wide" tabindex="0"><table{_class(form)}><thead><tr>{heads}</tr></thead>\n'
        f"<tbody>{rows}</tbody></table></div>\n{caption}</figure>"
    )


def _minus(text: str) -> str:
    """Text whose negative numbers have a minus sign, as the charts and the answer have."""
    return re.sub(r"(^|[ \[])-(?=\d)", "\\1\N{MINUS SIGN}", text)


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _kind(cells: Sequence[str]) -> str:
    """Sentences are ``long`` and may be broken into lines; words are ``text``; numbers, which align right, nothing."""
    if any(len(cell) > _LONG for cell in cells):
        return "long text"
    return "" if any(character.isdigit() for cell in cells for character in cell) else "text"


def _row(heads: Sequence[str], kinds: Sequence[str], cells: Sequence[str], colour: str | None, mark: str) -> str:
    name, *others = (_cell(*one) for one in zip(range(len(heads)), heads, kinds, cells, strict=True))
    if mark:
        name = name.replace("</td>", f' <span class="mark">{escaped(mark)}</span></td>')
    style = f' style="--mark:{colour}"' if colour else ""
    return f"<tr{style}{_class('best' * (mark == 'best'))}>{name}{''.join(others)}</tr>"


def _cell(place: int, head: str, kind: str, cell: str) -> str:
    text = _minus(escaped(cell))
    if not place or kind.startswith("long"):  # a name gives way if the other columns need the room
        text = re.sub("[:(,]", r"\g<0><wbr>", text)
    return f'<td{_class(kind)} data-head="{escaped(head)}">{text}</td>'
