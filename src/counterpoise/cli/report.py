"""`counterpoise report`: one HTML page about runs, and its figures as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.metric import Metric
from counterpoise.cli.screen import echo
from counterpoise.errors import CounterpoiseError
from counterpoise.loading import loading

__all__ = ["report"]


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs, or of a comparison.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.html", help="The page [default: report.html in DIR, or here for several]."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option("--export", metavar="DIR", help="Also write every figure into this folder.")
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", metavar="PNG,SVG,PDF", help="Formats of the exported figures.")
    ] = "png,svg",
    width: Annotated[
        str, typer.Option("--width", metavar="page|column", help="Width of the exported figures in a paper.")
    ] = "page",
    metric: Metric = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")] = False,
) -> None:
    """Write a report: one HTML file with every chart and table.

    It works offline, in light and dark mode, on a phone and on paper. Several folders are compared in one report.
    Exporting figures needs Chromium or Chrome.

    Example: `counterpoise report runs/compare-quickstart --export figures --format pdf --width column`
    """
    with loading():
        from counterpoise.reports import export, write  # imports plotly as well, which is slow

    asked = [form.strip().lower() for form in formats.split(",") if form.strip()]
    if not asked:
        raise CounterpoiseError("--format takes png, svg and pdf: png,pdf.")
    page = write(folders, out, metric)
    drawn = export(folders, figures, asked, metric, width) if figures is not None else []
    if as_json:
        echo(json.dumps({"report": str(page), "figures": [str(path) for path in drawn]}))
        return
    echo(f"report: {page}")
    if figures is not None:
        echo(f"figures: {len(drawn)} in {figures}")
