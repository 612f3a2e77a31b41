"""A study as an HTML page, and as a part of a Markdown page with its figure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from counterpoise import __version__
from counterpoise.charts.style import escaped
from counterpoise.comparisons.plan import slugs
from counterpoise.errors import CounterpoiseError
from counterpoise.reports.chart import Listing, Missing, Section, Table
from counterpoise.reports.page import page
from counterpoise.runs.files import replace_text
from counterpoise.studies.drawing import drawing
from counterpoise.studies.figures import against_published, by_cell
from counterpoise.studies.finding import Finding
from counterpoise.studies.tables import (
    again,
    cannot,
    claim_table,
    notes,
    reasons,
    results,
    verdicts_counted,
    waiting,
)

__all__ = ["render", "write_pages"]


def write_pages(found: Finding, out: Path, command: str = "") -> list[Path]:
    """Write ``NAME.html``, ``NAME.md`` and its figure ``NAME.svg`` into a folder. Return what was written."""
    if not out.is_dir():
        raise CounterpoiseError(f"There is no folder {out} for the pages.")
    name = slugs([found.study.name])[0]
    drawn = drawing(found.rows, found.claims, found.study.title)
    figure = f"{name}.svg" if drawn else ""
    texts = {f"{name}.html": render(found, command), f"{name}.md": found.markdown(figure=figure, command=command)}
    for file, text in (texts | ({figure: drawn} if drawn else {})).items():
        replace_text(out / file, text)
    return [out / file for file in (*texts, *filter(None, [figure]))]


def render(found: Finding, command: str = "") -> str:
    """A study's page."""
    footer = f"<p>Made by Counterpoise {__version__} from the study's results. The file needs no network.</p>"
    return page(found.study.title, _lead(found), list(_sections(found, command)), footer)


def _lead(found: Finding) -> str:
    values, claims = verdicts_counted(found.rows, found.claims)
    told = [f"Published values: {values}."] if values else []
    told += [f"Claims: {claims}."] if claims else []
    about = "".join(f"\n<p>{_marked(part)}</p>" for part in found.study.about.strip().split("\n\n") if part)
    return f'<p class="lead">{escaped(" ".join(told))}</p>{about}'


def _marked(text: str) -> str:
    """A paragraph with Markdown's emphasis and code as HTML."""
    code = r"`(?P<code>[^`]+)`"
    emphasis = r"(?<![\w*])\*(?P<word>[^\s*`][^*`]*)\*(?![\w*])"

    def element(found: re.Match[str]) -> str:
        return f"<code>{found['code']}</code>" if found["code"] else f"<em>{found['word']}</em>"

    return re.sub(f"{code}|{emphasis}", element, escaped(text))


def _sections(found: Finding, command: str) -> Iterator[Section]:
    charts = [
        chart for chart in (against_published(found.rows, found.claims), by_cell(found.rows)) if chart is not None
    ]
    if charts:
        yield Section("figures", "In pictures", charts)
    heads = {"rows": "Every method of every cell", "views": "The same runs, measured otherwise"}
    several = zip(heads.items(), results(found.rows, found.claims), strict=False)
    tables = [Table(key, head, *one) for (key, head), one in several]
    claims = [Table("claims", "Claims", *claim_table(found.claims))] if found.claims else []
    yield Section("tables", "In numbers", [*tables, *claims])
    missing = [Missing(f"{names}, still to run", labels) for names, labels in waiting(found.rows).items()]
    missing += [Missing(name, why) for name, why in cannot(found.rows).items()]
    missing += [Missing("Collapsed", line) for line in reasons(found.rows)]
    missing += [Missing(name, note) for name, note in notes(found.rows, found.claims)]
    if missing:
        yield Section("missing", "What is still to run, what cannot be run, what collapsed, and notes", missing)
    if command:
        sentence, repeats = again(found.rows, command)
        yield Section("again", "Run it again", [Listing(sentence.replace("`", ""), repeats, open=True)])
