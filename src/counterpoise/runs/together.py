"""Several runs in one process: those that can train as one batch do so, group by group."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

import torch

from counterpoise.engine.rounds.lockstep import Lockstep, why_apart
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.engine.rounds.simulation import Simulation
from counterpoise.errors import Interrupted
from counterpoise.memory import bytes_in_words, machine_memory
from counterpoise.runs.course import Course, Turn, stoppable
from counterpoise.runs.run import Run

__all__ = ["Ended", "drive_together"]

log = logging.getLogger(__name__)

Ended = Callable[[int, Run | BaseException], object]
"""Told of each run's end: its place among the courses, and the run or what stopped it."""


def drive_together(courses: Sequence[Course], ended: Ended, most: int | None = None) -> None:
    """Compute the rounds of several runs, at most `most` of them at once.

    An error of one run ends only that run. An interruption ends all of them, each with a checkpoint, and is raised.
    """
    halts: list[threading.Event] = []
    turns: dict[int, Turn] = {}
    with stoppable(halts) as signals:
        for place, course in enumerate(courses):
            _ask(place, course, turns, ended, lambda course: next(course))
        for places in _groups(turns, most):
            group = [turns[place].simulation for place in places]
            lockstep = Lockstep(group) if len(group) > 1 else None
            halts[:] = [one.backend.halt for one in (*group, *((lockstep,) if lockstep else ()))]
            for halt in halts if signals else ():  # it came before there was anything to stop
                halt.set()
            while live := [place for place in places if place in turns]:
                found = _advance([turns.pop(place) for place in live], lockstep)
                for place, what in zip(live, found, strict=True):
                    _ask(place, courses[place], turns, ended, _answer(what))
        if signals:
            stopped = Interrupted("Stopped.")
            stopped.signal = signals[0]
            raise stopped


def _groups(turns: Mapping[int, Turn], most: int | None) -> list[list[int]]:
    """The runs that can train together: at most `most` in a group, and only as many as fit into memory."""
    groups: list[list[int]] = []
    for place, turn in turns.items():
        fits = (group for group in groups if _joins([turns[one].simulation for one in group], turn.simulation, most))
        if (group := next(fits, None)) is None:
            groups.append(group := [])
        group.append(place)
    return groups


def _joins(group: Sequence[Simulation], one: Simulation, most: int | None) -> bool:
    if len(group) == most or why_apart(group[0], one):
        return False
    kept, there = sum(map(_most_kept, [*group, one])), _memory(one)
    if there is not None and kept > there / 2:
        log.warning(
            "At most %d of these runs train together: what one more keeps for its clients could make it %s, and there "
            "are %s of memory.",
            len(group),
            bytes_in_words(kept),
            bytes_in_words(there),
        )
        return False
    return True


def _most_kept(one: Simulation) -> float:
    """The most bytes of memory that the rows kept for a run's clients can take."""
    stores = (*one.server.records.values(), *one.client_state.values())
    return sum(min(store.row * one.trainer.federation.clients, one.trainer.memory) for store in stores)


def _memory(one: Simulation) -> int | None:
    """The bytes of memory where a run keeps its rows."""
    if one.trainer.start.is_cuda:
        return int(torch.cuda.mem_get_info(one.trainer.start.device)[1])
    return machine_memory()


def _advance(turns: Sequence[Turn], lockstep: Lockstep | None) -> list[RoundRecord | BaseException]:
    """The next round of each run, or what stopped it."""
    try:
        if lockstep is not None:
            return [*lockstep.advance(turns)]
        return [turns[0].simulation.advance(turns[0].last)]
    except BaseException as error:  # each run saves what it has and raises it again
        return [error for _ in turns]


def _answer(what: RoundRecord | BaseException) -> Callable[[Course], Turn]:
    if isinstance(what, BaseException):
        return lambda course: course.throw(what)
    return lambda course: course.send(what)


def _ask(place: int, course: Course, turns: dict[int, Turn], ended: Ended, ask: Callable[[Course], Turn]) -> None:
    """Let a run go on until it asks for its next round or ends."""
    try:
        turns[place] = ask(course)
    except StopIteration as end:
        ended(place, end.value)
    except (Exception, Interrupted) as error:  # the other runs go on
        ended(place, error)
