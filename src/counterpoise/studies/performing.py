"""Run a study: lock its folder, write the cells' plans, and conduct the open pieces of all cells together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import tomli_w

from counterpoise.comparisons.abroad import Executor
from counterpoise.comparisons.board import Board, shown
from counterpoise.comparisons.conduct import News, conducting, held
from counterpoise.comparisons.perform import Workers, check_free, crew, taken
from counterpoise.comparisons.plan import Piece, slugs
from counterpoise.errors import CounterpoiseError, takes_only_its_options
from counterpoise.runs.files import make_folder, replace_text
from counterpoise.studies.checking import check_cell
from counterpoise.studies.contents import RESULTS, STUDY, of_study
from counterpoise.studies.finding import Finding
from counterpoise.studies.ledger import Ledger, check_settings
from counterpoise.studies.plans import plan_of
from counterpoise.studies.provenance import made_here
from counterpoise.studies.reading import chosen, made_study, read_study
from counterpoise.studies.results import Made, read_results
from counterpoise.studies.study import Study
from counterpoise.texts import parse_toml, read_text

__all__ = ["Work", "begun", "default_folder", "results_of", "study", "study_board"]


@dataclass(frozen=True)
class Work:
    """A study that is locked and ready to run."""

    study: Study
    folder: Path
    pieces: Sequence[Piece]
    """Those still to run, with their places in the study's folder."""
    lock: int | None
    ledger: Ledger


@takes_only_its_options()
def study(
    source: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    cells: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: int | None = None,
    anyway: bool = False,
    jobs: int | None = None,
    together: int | None = None,
    on: str = "",
    executor: Executor | None = None,
    results: str | Path | None = None,
    tell: Callable[[News | None], object] = lambda news: None,
    progress: bool | None = None,
) -> Finding:
    """Run a study, or what is left of it, and hold what it found against what was published.

    `source` is a TOML file, or its values. Runs are kept in the folder `out`, by default one in ``runs/`` named after
    the study. What they found is kept in the file `results`: by default beside the study's file, with the ending
    ``.json``, or in the folder if there is no file. Pieces with a result there are not run again, even if the folder is
    lost. `cells`, `methods` and `seeds` change what is run, `jobs`, `together`, `on` and `executor` where, as in a
    comparison. With `anyway`, cells that the study says cannot be run are run too. `tell` gets the news of every run.
    `progress` as in `compare`.
    """
    whole = made_study(source, "study", "the study") if isinstance(source, Mapping) else read_study(Path(source))
    folder = default_folder(whole) if out is None else Path(out)
    beside = folder / RESULTS if isinstance(source, Mapping) else results_of(Path(source))
    path = beside if results is None else Path(results)
    workers = Workers(jobs, together, on)
    workers.check()
    with (
        begun(whole, folder, path, cells=cells, methods=methods, seeds=seeds, anyway=anyway, on=on) as work,
        crew(folder, work.pieces, work.lock, workers, executor) as found,
        shown(study_board(work, found.workers), progress) as show,
    ):

        def hear(news: News | None) -> None:
            work.ledger.hear(news)
            show(news)
            tell(news)

        found.work(hear)
    return Finding(work.study, work.ledger.results)


def study_board(work: Work, workers: int) -> Board:
    """The live table of a study, with a row for each cell."""
    rows: dict[str, list[Piece]] = {}
    for piece in work.pieces:
        rows.setdefault(work.ledger.cell_of(piece), []).append(piece)
    return Board("cell", work.study.title, rows, workers, metric="", paces=work.ledger.paces)


def default_folder(whole: Study) -> Path:
    """The folder in runs/ that is named after the study."""
    return Path("runs", f"study-{slugs([whole.name])[0]}")


def results_of(path: Path) -> Path:
    """Where the results of a study's file are kept: beside it."""
    return path.with_suffix(".json")


@contextlib.contextmanager
def begun(
    whole: Study,
    folder: Path,
    path: Path,
    command: str = "",
    *,
    cells: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: int | None = None,
    anyway: bool = False,
    on: str = "",
) -> Iterator[Work]:
    """Lock a study's folder and its cells', write their plans, and find the pieces to run. Write the results at the end."""
    part = chosen(whole, cells, seeds, methods)
    own = [cell for cell in part.cells if not cell.runs_of and (anyway or not cell.cannot)]
    plans = [(cell, plan_of(cell, command)) for cell in own]
    views = [(view, plan) for view in whole.cells for cell, plan in plans if view.runs_of == cell.name]
    for view, _ in views:
        check_cell(view)
    results = read_results(path)[1] if path.exists() else {}
    check_settings(results, plans + views, path)
    made = made_here(on)
    make_folder(folder)
    check_free(folder, STUDY, of_study)
    with held(folder, STUDY) as lock, contextlib.ExitStack() as locks:
        check_free(folder, STUDY, of_study)  # another process may have taken it in the meantime
        before = _last_made(folder) or made
        replace_text(folder / STUDY, tomli_w.dumps({"title": whole.title, "made": vars(made)}))
        locks.enter_context(conducting(folder, STUDY))
        ledger = Ledger(whole, folder, path, results, made)
        rows: list[list[Piece]] = []
        for cell, plan in plans:
            if ledger.lacking(cell, plan):
                there, _ = locks.enter_context(taken(folder / cell.slug, plan))
                locks.enter_context(conducting(folder / cell.slug))
                rows.append(list(ledger.open_pieces(cell, plan, there, before)))
        ledger.write()
        try:
            yield Work(part, folder, _seed_by_seed(rows), lock, ledger)
        finally:
            ledger.write()


def _seed_by_seed(rows: Sequence[Sequence[Piece]]) -> list[Piece]:
    """All pieces; the first seeds of every cell come first. Those with the same data follow one another."""
    by_seed = [_split(pieces) for pieces in rows]
    return [piece for row in zip_longest(*by_seed, fillvalue=[]) for pieces in row for piece in pieces]


def _split(pieces: Sequence[Piece]) -> list[list[Piece]]:
    seeds: dict[int, list[Piece]] = {}
    for piece in pieces:
        seeds.setdefault(piece.seed, []).append(piece)
    return [seeds[seed] for seed in sorted(seeds)]


def _last_made(folder: Path) -> Made | None:
    """What the last command in this folder ran with. If it was killed, runs that it never added were made with that."""
    path = folder / STUDY
    if not path.exists():
        return None
    found = parse_toml(read_text(path), str(path)).get("made")
    try:
        return Made(**{key: str(value) for key, value in (found or {}).items()})
    except (AttributeError, TypeError):
        raise CounterpoiseError(f"{path} was not written by counterpoise. Choose another folder with --out.") from None
