"""Notebooks as pages of the site: their text, their code, and what the code shows.

The notebooks in `examples/notebooks` hold no outputs. Their cells are run when the site is built; one that fails stops
the build. Figures are drawn by a copy of plotly that lies beside the pages, so the site needs no network.
"""

from __future__ import annotations

import ast
import contextlib
import html
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plotly.offline
from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx

from counterpoise.reports.inline import Report

PLOTLY = "_static/plotly.min.js"


def run(source: str, names: dict[str, Any]) -> Any:
    """Run a cell. Returns the value of its last line if that is an expression."""
    *lines, last = ast.parse(source).body
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if not isinstance(last, ast.Expr):
            exec(source, names)
            return None
        exec(compile(ast.Module(lines, []), "a cell", "exec"), names)
        return eval(compile(ast.Expression(last.value), "a cell", "eval"), names)


def shown(value: Any, page: Path, plotly: str | bool) -> str:
    """A value as HTML. A report is written beside its page; `plotly` is where a figure finds its code, if not there."""
    if value is None:
        return ""
    if isinstance(value, Report):
        page.parent.mkdir(parents=True, exist_ok=True)
        place = value.save(page.with_name(f"{page.stem}-report.html")).name
        return f'<a href="{place}">The report on a page of its own.</a><iframe src="{place}"></iframe>'
    if hasattr(value, "to_plotly_json"):
        return str(value.to_html(full_html=False, include_plotlyjs=plotly, config={"displayModeBar": False}))
    return str(value._repr_html_()) if hasattr(value, "_repr_html_") else f"<pre>{html.escape(repr(value))}</pre>"


def as_markdown(book: dict[str, Any], page: Path, root: str) -> Iterator[str]:
    """The cells of a notebook as Markdown, each code cell followed by what it shows. `root` leads to the site's."""
    names: dict[str, Any] = {}
    plotly: str | bool = root + PLOTLY
    for cell in book["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source
        else:
            yield f"```python\n{source}\n```"
            value = run(source, names)
            if output := shown(value, page, plotly):
                yield f'``````{{raw}} html\n<div class="output">{output}</div>\n``````'
            if hasattr(value, "to_plotly_json"):
                plotly = False  # one copy for the page


class NotebookParser(MystParser):
    """Parses a notebook as the Markdown that it amounts to."""

    supported = ("notebook",)
    site = Path()
    """Where the site is written."""

    def parse(self, inputstring: str, document: nodes.document) -> None:
        name = document.settings.env.docname
        cells = as_markdown(json.loads(inputstring), self.site / f"{name}.html", "../" * name.count("/"))
        super().parse("\n\n".join(cells), document)


def bring_plotly(app: Sphinx, error: Exception | None) -> None:
    """Put plotly's code where the figures look for it."""
    if error is None:
        Path(app.outdir, PLOTLY).write_text(plotly.offline.get_plotlyjs(), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Read `.ipynb` files as pages."""
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    NotebookParser.site = Path(app.outdir)
    app.connect("build-finished", bring_plotly)
    return {"parallel_read_safe": True}
