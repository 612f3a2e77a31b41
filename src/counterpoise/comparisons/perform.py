"""Perform a comparison: lock its folder, write the plan into it, and run what is left of it, here or on a cluster."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from counterpoise.comparisons.abroad import Executor, conduct_abroad
from counterpoise.comparisons.clusters import opened
from counterpoise.comparisons.collection import Group, of_plan
from counterpoise.comparisons.conduct import Tell, Warn, conduct, conducting, held, open_pieces, seats_here
from counterpoise.comparisons.contents import COMPARISON, LOG, of_comparison
from counterpoise.comparisons.plan import Piece, Plan, read_plan, write_plan
from counterpoise.errors import CounterpoiseError, brief
from counterpoise.runs.files import check_plain, is_partial, make_folder
from counterpoise.runs.locks import LOCK

__all__ = ["Crew", "Workers", "check_free", "crew", "perform", "taken"]

log = logging.getLogger(__name__)

_SHOWN = 5
"""How many different warnings of workers are shown."""
_HOW_MANY = "Say with jobs=... how many workers the executor has."


class Workers(NamedTuple):
    """What a user says about workers."""

    jobs: int | None = None
    """How many there are; by default as many as the GPUs, cores or cluster allow."""
    together: int | None = None
    """The most runs that one of them trains as one batch; by default all that can."""
    on: str = ""
    """A cluster: dask:ADDRESS, ray or ray:ADDRESS; by default this machine."""

    @property
    def words(self) -> list[str]:
        """The options of the command line that say the same."""
        said = {"--jobs": self.jobs, "--together": self.together, "--on": self.on or None}
        return [word for option, value in said.items() if value is not None for word in (option, str(value))]

    def check(self) -> None:
        """Refuse a number of jobs or runs that makes no sense, before anything is written or removed."""
        for name, value in (("jobs", self.jobs), ("together", self.together)):
            if value is not None and (type(value) is not int or value < 1):
                raise CounterpoiseError(f"{name} must be a whole number from 1 on, not {brief(value)}.")


class Crew(NamedTuple):
    """The workers for some pieces."""

    sentence: str
    """Where they are; empty if there is nothing to say."""
    workers: int
    work: Callable[[Tell], None]
    """Run the pieces, and report every round and end."""


def perform(
    plan: Plan,
    out: str | Path,
    *,
    executor: Executor | None = None,
    jobs: int | None = None,
    together: int | None = None,
    tell: Tell = lambda news: None,
) -> list[Group]:
    """Run a plan in the folder `out`, or what is left of it, and return its runs by arm.

    `executor` is any executor such as those of `concurrent.futures`, and `jobs` is the number of its workers. They need
    the same version of counterpoise, and `out` under the same path. By default, worker processes of this machine run
    the plan.
    """
    workers = Workers(jobs, together)
    workers.check()
    if executor is not None and jobs is None:
        raise CounterpoiseError(_HOW_MANY)
    folder = Path(out)
    with taken(folder, plan) as (whole, lock), conducting(folder):
        with crew(folder, open_pieces(folder, whole), lock, workers, executor) as found:
            found.work(tell)
        return of_plan(folder, whole)


@contextlib.contextmanager
def taken(folder: Path, plan: Plan) -> Iterator[tuple[Plan, int | None]]:
    """Lock a folder and write a plan into it, joined with the one that is there. Yield the whole plan and the lock."""
    make_folder(folder)
    check_free(folder)
    with held(folder) as lock:
        check_free(folder)  # another process may have taken it in the meantime
        if (folder / COMPARISON).exists():
            plan = read_plan(folder).extended(plan)
        write_plan(folder, plan)
        yield plan, lock


@contextlib.contextmanager
def crew(
    folder: Path, pieces: Sequence[Piece], lock: int | None, workers: Workers, executor: Executor | None = None
) -> Iterator[Crew]:
    """The workers for pieces: those of an executor, of a cluster, or processes on this machine.

    What they warned of is logged in the end, each sentence once.
    """
    warned: dict[str, None] = {}
    with _hired(folder, pieces, lock, workers, executor, lambda sentence: warned.setdefault(sentence)) as found:
        try:
            yield found
        finally:
            for sentence in [*warned][:_SHOWN]:
                log.warning("%s", sentence)
            if len(warned) > _SHOWN:
                log.warning("%d more warnings of workers are in %s.", len(warned) - _SHOWN, folder / LOG)


@contextlib.contextmanager
def _hired(
    folder: Path,
    pieces: Sequence[Piece],
    lock: int | None,
    workers: Workers,
    executor: Executor | None,
    warn: Warn,
) -> Iterator[Crew]:
    jobs, together, on = workers
    if executor is not None:
        if jobs is None:
            raise CounterpoiseError(_HOW_MANY)
        # An executor does not say where its workers are: all of them may share one machine's memory.
        abroad = partial(conduct_abroad, executor, folder, pieces, jobs, together=together, warn=warn)
        yield Crew("", jobs, partial(abroad, sharing=jobs))
    elif on and pieces:
        with opened(on, pieces) as (there, count, sentence, sharing):
            at_once = jobs or max(count, 1)
            abroad = partial(conduct_abroad, there, folder, pieces, at_once, together=together, warn=warn)
            yield Crew(sentence, at_once, partial(abroad, most=jobs, sharing=min(sharing, at_once)))
    else:
        seats = seats_here(pieces, jobs)
        yield Crew(
            seats.sentence(), seats.most, lambda tell: conduct(folder, pieces, seats, tell, lock, together, warn)
        )


def check_free(folder: Path, plan: str = COMPARISON, ours: Callable[[str], bool] = of_comparison) -> None:
    """Refuse a folder that is not empty, unless it holds a plan (the file of this name) and no links.

    Temporary forms of files that are `ours` do not count.
    """
    if (folder / plan).exists():
        check_plain(folder)
    elif any(entry.name != LOCK and not is_partial(entry.name, ours) for entry in folder.iterdir()):
        raise CounterpoiseError(
            f"The folder {folder} is not empty. Choose another one with --out (in Python with out=...)."
        )
