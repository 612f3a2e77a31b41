"""What a study found: show it, and write it as pages. Showing it loads no torch."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from counterpoise.cli.screen import Console, echo, output, print_told
from counterpoise.cli.tables import named_lines
from counterpoise.loading import noting_slow
from counterpoise.studies.finding import Finding, found_in
from counterpoise.studies.tables import as_plain, cannot, claim_table, reasons, table

__all__ = ["print_finding", "report_study", "show_study"]


def show_study(file: Path, cells: Sequence[str], results: Path | None, as_json: bool) -> None:
    """Show a study from its results."""
    print_finding(_found(file, cells, results), as_json)


def _found(file: Path, cells: Sequence[str], results: Path | None) -> Finding:
    found = found_in(file, results, cells)
    for doubt in found.doubts:
        echo(f"warning: {doubt}", err=True)
    return found


def print_finding(found: Finding, as_json: bool) -> None:
    """Print a study's tables, or one JSON document."""
    if as_json:
        echo(json.dumps(_document(found)))
        return
    console = output()
    with noting_slow():
        rows, claims = table(found.rows), claim_table(found.claims)
    _print(console, *rows)
    if found.claims:
        echo()
        _print(console, *claims)
    lines = [f"cannot be run: {name}: {why}" for name, why in cannot(found.rows).items()]
    lines += [f"collapsed: {line}" for line in reasons(found.rows)]
    print_told(lines, console)


def _print(console: Console, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for line in named_lines(heads, rows, console.width):
        console.print(line)


def _document(found: Finding) -> dict[str, Any]:
    return {"title": found.study.title, **as_plain(found.rows, found.claims)}


def report_study(file: Path, out: Path, cells: Sequence[str], results: Path | None) -> None:
    """Write a study's pages."""
    from counterpoise.studies.pages import write_pages  # imports plotly, which is slow

    command = shlex.join(["counterpoise", "study", "run", str(file.with_suffix(".toml"))])
    for path in write_pages(_found(file, cells, results), out, command):
        echo(f"written: {path}")
