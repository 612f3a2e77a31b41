"""Run the pieces of a comparison in this process: those that can train as one batch do so.

A call in Python uses this for runs that are kept nowhere, and for what only Python has: a user's own model, method or
data.
"""

from __future__ import annotations

import datetime
import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from counterpoise.comparisons.asking import Asked
from counterpoise.comparisons.conduct import News, Tell
from counterpoise.comparisons.plan import Piece, Plan
from counterpoise.comparisons.worker import display_metrics, failure
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.engine.rounds.setup import Setup
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation
from counterpoise.federation.overview import holdings
from counterpoise.runs.course import Course, OnRound
from counterpoise.runs.failure import forget_failure
from counterpoise.runs.files import check_plain
from counterpoise.runs.kept import Holdings, checked
from counterpoise.runs.repeating import Differs
from counterpoise.runs.run import Run
from counterpoise.runs.saved import SavedRun, status_of
from counterpoise.runs.starting import setup_course
from counterpoise.runs.together import drive_together
from counterpoise.texts import counted

__all__ = ["run_here"]

log = logging.getLogger(__name__)


def run_here(asked: Asked, plan: Plan, folder: Path | None, together: int | None, tell: Tell) -> dict[str, SavedRun]:
    """Run the pieces of a plan, and return them by their places. With a folder, keep them in it.

    An error ends only its own run, unless no run finishes: then the first one is raised.
    """
    pieces = list(_pieces(plan, folder))
    setups = [asked.setup(piece) for piece in pieces]
    ends: dict[str, Run | Exception] = {}

    def hearing(piece: Piece) -> OnRound:
        def hear(record: RoundRecord) -> None:
            tell(News(piece, record.round, display_metrics(record), record.seconds))

        return hear

    def ended(place: int, what: Run | BaseException) -> None:
        piece = pieces[place]
        if isinstance(what, Differs):  # before anything is trained: the folder holds something else
            assert folder is not None
            later = zip(pieces[place + 1 :], courses[place + 1 :], strict=True)
            more = [one for one, course in later if _kept(folder, one) and _differs(course)]
            raise _refusal(what, [piece, *more], pieces, folder)
        if isinstance(what, Exception):
            tell(News(piece, end="failed", sentence=_failure_sentence(folder, piece, what)))
        if isinstance(what, Run):
            tell(News(piece, end="finished"))
        if isinstance(what, Run | Exception):
            ends[piece.place] = what

    courses = [
        _course(made, hearing(piece), folder and folder / piece.place)
        for piece, made in zip(pieces, setups, strict=True)
    ]
    drive_together(courses, ended, together)
    errors = [what for what in ends.values() if isinstance(what, Exception)]
    if errors and len(errors) == len(ends):
        raise errors[0]
    held: dict[int, Any] = {}  # runs of one seed share their federation
    for made in setups:
        if id(made.federation) not in held:
            held[id(made.federation)] = _held(made.federation)
    return {
        piece.place: _in_memory(ends[piece.place], piece, held[id(made.federation)])
        for piece, made in zip(pieces, setups, strict=True)
    }


def _kept(folder: Path, piece: Piece) -> bool:
    return (folder / piece.place / "config.toml").exists()


def _differs(course: Course) -> bool:
    """Whether the folder of a course holds another run. The course is begun to find out, and goes no further."""
    try:
        next(course)
    except Differs:
        return True
    except (CounterpoiseError, StopIteration):  # it cannot go on, or has nothing left to do
        return False
    course.close()
    return False


def _refusal(what: Differs, differing: Sequence[Piece], pieces: Sequence[Piece], folder: Path) -> Differs:
    """The error for a folder with other runs: the first that differs, how many do, and how to remove these methods'."""
    labels = list(dict.fromkeys(piece.label for piece in differing))
    mine = [str(folder / piece.place) for piece in pieces if piece.label in labels and _kept(folder, piece)]
    more = len(differing) - 1
    also = (
        f" {counted(more, 'other run')} of this comparison {'differs' if more == 1 else 'differ'} too." if more else ""
    )
    return Differs(
        f"{what.what}{also} To train {', '.join(labels)} again, remove {'its' if len(labels) == 1 else 'their'} runs "
        f"first: {shlex.join(['counterpoise', 'runs', 'rm', *mine])}. Or choose another folder, or replace all that "
        f"{folder} holds with overwrite=True."
    )


def _pieces(plan: Plan, folder: Path | None) -> Iterator[Piece]:
    """The pieces of a plan, seed by seed, as on the command line.

    A run that diverged is left out, because it would diverge again.
    """
    for row in zip(*(plan.pieces(arm) for arm in plan.arms), strict=True):
        for piece in row:
            if folder is None or status_of(folder / piece.place) != "diverged":
                yield piece


def _course(made: Setup, on_round: OnRound, folder: Path | None) -> Course:
    if folder is not None:
        check_plain(folder)
        forget_failure(folder)
    return (yield from setup_course(made, on_round, folder))


def _failure_sentence(folder: Path | None, piece: Piece, error: Exception) -> str:
    """One sentence that says why a run failed, also in its folder. The traceback of a user's own code is logged."""
    if not isinstance(error, CounterpoiseError) or error.__cause__ is not None:
        log.warning("%s with seed %d failed.", piece.label, piece.seed, exc_info=error)
    return failure(None if folder is None else folder / piece.place, error)


def _held(federation: Federation) -> dict[str, Any]:
    """Who holds which data, as a run's folder would record it."""
    return checked(Holdings, dict(holdings(federation)), "the federation").model_dump(exclude_none=True)


def _in_memory(what: Run | Exception, piece: Piece, held: Mapping[str, Any]) -> SavedRun:
    """A run that is on no disk, as tables and reports read it."""
    run = what if isinstance(what, Run) else getattr(what, "run", None)
    rounds, status = (run.rounds, run.status) if isinstance(run, Run) else ([], "failed")
    sentence = "" if isinstance(what, Run) else failure(None, what)
    now, why = datetime.datetime.now().astimezone(), run.why if isinstance(run, Run) else ""
    return SavedRun(None, piece.values, tuple(rounds), status, sentence, now, held=held, why=why)
