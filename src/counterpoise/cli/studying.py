"""Run a study, or what is left of it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import typer

from counterpoise.cli.findings import print_finding
from counterpoise.cli.leaving import ended_by_signals, leave
from counterpoise.cli.screen import echo
from counterpoise.comparisons.board import Board, shown
from counterpoise.comparisons.conduct import News
from counterpoise.comparisons.perform import Workers, crew
from counterpoise.comparisons.wording import roughly
from counterpoise.studies.finding import Finding
from counterpoise.studies.performing import Work, begun, default_folder, results_of, study_board
from counterpoise.studies.reading import read_study
from counterpoise.studies.tables import took
from counterpoise.texts import counted

__all__ = ["run_study"]


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
    with (
        begun(
            whole, folder, path, command, cells=cells, methods=methods, seeds=seeds, anyway=anyway, on=workers.on
        ) as work,
        ended_by_signals() as came,
    ):
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
    print_finding(found, as_json)
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
        board = study_board(work, found.workers)
        if work.pieces:
            echo(_to_do(work, board), err=True)
        with shown(board, log=partial(echo, err=True)) as hear:

            def listen(news: News | None) -> None:
                work.ledger.hear(news)
                hear(news)

            found.work(listen)


def _to_do(work: Work, board: Board) -> str:
    """What is left, and about how long it takes if earlier runs tell."""
    what = f"{counted(len(work.pieces), 'run')} left in {counted(len(board.rows), 'cell')}"
    if here := roughly(board.left()):
        return f"{what}: {here}, by earlier runs on this machine."
    return f"{what}. {took(Finding(work.study, work.ledger.results).rows)}".rstrip()
