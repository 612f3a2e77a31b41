"""What `counterpoise study` does: run a study, show it, and write it as pages."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

from counterpoise.choices import split
from counterpoise.cli.leaving import ended_by_signals, leave
from counterpoise.cli.screen import Console, echo, output, print_told
from counterpoise.cli.tables import named_lines
from counterpoise.comparisons.board import shown
from counterpoise.comparisons.conduct import News
from counterpoise.comparisons.perform import Workers, crew
from counterpoise.studies.finding import Finding, found_in
from counterpoise.studies.performing import Work, begun, default_folder, results_of, study_board
from counterpoise.studies.reading import read_study
from counterpoise.studies.tables import as_plain, cannot, claim_table, reasons, table, took
from counterpoise.texts import counted

__all__ = ["report_study", "run_study", "show_study"]


def run_study(
    file: Path,
    out: Path | None,
    cells: Sequence[str],
    methods: Sequence[str],
    seeds: int | None,
    anyway: bool,
    results: Path | None,
    workers: Workers,
    as_json: bool,
) -> None:
    """Run a study, or what is left of it, and show it."""
    whole = read_study(file)
    folder, path = out or default_folder(whole), results or results_of(file)
    command = shlex.join(["counterpoise", "study", "run", str(file)])
    only = [label for text in methods for label in split(text)]
    with begun(
        whole, folder, path, command, cells=cells, methods=only, seeds=seeds, anyway=anyway, on=workers.on
    ) as work:
        if work.pieces and results_of(file).exists():
            kept = found_in(file, cells=cells)
            echo(" ".join([f"{counted(len(work.pieces), 'run')} to do.", took(kept.rows)]).rstrip(), err=True)
        with ended_by_signals() as came:
            try:
                _conduct(work, workers)
            except KeyboardInterrupt:
                work.ledger.write()
                done = len(work.pieces) - work.ledger.still_open
                leave(
                    f"Stopped with {done} of {counted(len(work.pieces), 'run')} done. The same command goes on.",
                    128 + came[0],
                )
    found = Finding(work.study, work.ledger.results)
    _show(found, as_json)
    if not as_json:
        echo(f"kept in: {folder}\nresults: {path}")
    if not work.pieces:  # last, below a table that may be long
        echo(
            f"All its runs have results in {path}, so nothing was run. To run them again: --results mine.json",
            err=as_json,
        )
    if any(one.status == "failed" for row in found.rows for one in row.outcomes.values()):
        raise typer.Exit(1)


def _conduct(work: Work, workers: Workers) -> None:
    with crew(work.folder, work.pieces, work.lock, workers) as found:
        if found.sentence:
            echo(found.sentence, err=True)
        with shown(study_board(work, found.workers), log=partial(echo, err=True)) as hear:

            def listen(news: News | None) -> None:
                work.ledger.hear(news)
                hear(news)

            found.work(listen)


def show_study(file: Path, cells: Sequence[str], results: Path | None, as_json: bool) -> None:
    """Show a study from its results."""
    _show(_found(file, cells, results), as_json)


def _found(file: Path, cells: Sequence[str], results: Path | None) -> Finding:
    found = found_in(file, results, cells)
    for doubt in found.doubts:
        echo(f"warning: {doubt}", err=True)
    return found


def _show(found: Finding, as_json: bool) -> None:
    if as_json:
        echo(json.dumps(_document(found)))
        return
    console = output()
    _print(console, *table(found.rows))
    if found.claims:
        echo()
        _print(console, *claim_table(found.claims))
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
