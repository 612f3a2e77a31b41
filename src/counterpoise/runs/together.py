"""Several runs in one process: those that can train as one batch do so, group by group."""

from __future__ import annotations

import gc
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from counterpoise.engine.rounds.lockstep import Lockstep, Member, why_apart
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.engine.rounds.simulation import Simulation
from counterpoise.errors import Interrupted
from counterpoise.memory import bytes_in_words, machine_memory
from counterpoise.runs.course import Course, Turn, stoppable
from counterpoise.runs.run import Run

__all__ = ["Ended", "drive_together"]

log = logging.getLogger(__name__)

_TWO_BATCHES = 4
"""From this many runs on, a GPU trains them in two batches."""

_COPIES = 4
"""A round's results may be in memory this many times at once: as a chunk returned them, joined, in the cohort's order,
and as the server changed them."""

Ended = Callable[[int, Run | BaseException], object]
"""Told of each run's end: its place among the courses, and the run or what stopped it."""


def drive_together(courses: Sequence[Course], ended: Ended, most: int | None = None, sharing: int = 1) -> None:
    """Compute the rounds of several runs, at most `most` of them at once. `sharing` processes share the memory.

    An error of one run ends only that run. An interruption ends all of them, each with a checkpoint, and is raised.
    """
    halts: list[threading.Event] = []
    turns: dict[int, Turn] = {}
    with stoppable(halts) as signals:
        for place, course in enumerate(courses):
            _ask(place, course, turns, ended, lambda course: next(course))
        for places in _groups(turns, most, sharing):
            batches = [_Batch([turns[place].simulation for place in some], some) for some in _halves(places, turns)]
            halts[:] = [halt for batch in batches for halt in batch.halts]
            for halt in halts if signals else ():  # a signal came before there was anything to stop
                halt.set()
            _alternate(batches, courses, turns, ended)
            del batches
            gc.collect()  # objects of a run refer to one another, and hold what the next group needs of a GPU
        if signals:
            stopped = Interrupted("Stopped.")
            stopped.signal = signals[0]
            raise stopped


def _groups(turns: Mapping[int, Turn], most: int | None, sharing: int) -> list[list[int]]:
    """The runs that can train together: at most `most` in a group, and only as many as fit into memory."""
    groups: list[list[int]] = []
    full: set[str] = set()
    for place, turn in turns.items():
        fits = (
            group
            for group in groups
            if _joins([turns[one].simulation for one in group], turn.simulation, most, sharing, full)
        )
        if (group := next(fits, None)) is None:
            groups.append(group := [])
        group.append(place)
    for sentence in sorted(full):
        log.warning("%s", sentence)
    return groups


def _joins(group: Sequence[Simulation], one: Simulation, most: int | None, sharing: int, full: set[str]) -> bool:
    """Whether a run joins a group. A sentence is added to `full` if only memory is in its way."""
    if len(group) == most or why_apart(group[0], one):
        return False
    held, there = sum(map(_most_held, [*group, one])), _memory(one)
    if there is not None and held > there / 2 / sharing:
        full.add(
            f"At most {len(group)} of these runs train together: with one more, what they keep for their clients and "
            f"the updates of a round could take {bytes_in_words(held)}, which is more than half of the "
            f"{bytes_in_words(there / sharing)} of memory "
            f"{'there' if sharing == 1 else f'that each of {sharing} workers has'}."
        )
        return False
    return True


def _most_held(one: Simulation) -> float:
    """The most bytes of memory that a run can need for the rows kept for its clients and for a round's results."""
    stores = (*one.server.records.values(), *one.client_state.values())
    kept = sum(min(store.row * one.trainer.federation.clients, one.trainer.memory) for store in stores)
    start = one.trainer.start
    returned = start.numel() * start.element_size() + sum(store.row for store in one.client_state.values())
    return kept + one.trainer.work.cohort * returned * _COPIES


def _memory(one: Simulation) -> int | None:
    """The bytes of memory where a run keeps its rows."""
    if one.trainer.start.is_cuda:
        return int(torch.cuda.mem_get_info(one.trainer.start.device)[1])
    return machine_memory()


class _Batch:
    """Runs that train together, or one alone."""

    def __init__(self, simulations: Sequence[Simulation], places: Sequence[int]) -> None:
        self.places = places
        self._lockstep = Lockstep(simulations) if len(simulations) > 1 else None
        backends = [one.backend for one in simulations] + ([self._lockstep.backend] if self._lockstep else [])
        self.halts = [backend.halt for backend in backends]

    def begin(self, turns: Sequence[Turn]) -> Callable[[], list[RoundRecord | BaseException]]:
        """Begin the next round of each run. Call what this returns for the records, or for what stopped the rounds."""
        try:
            if self._lockstep is None:
                record = turns[0].simulation.advance(turns[0].last)
                return lambda: [record]
            begun = self._lockstep.begin(turns)
        except BaseException as error:  # each run saves what it has and raises it again
            stopped = error
            return lambda: [stopped for _ in turns]
        return partial(self._finish, self._lockstep, begun)

    def _finish(self, lockstep: Lockstep, begun: Sequence[Member]) -> list[RoundRecord | BaseException]:
        try:
            return [*lockstep.finish(begun)]
        except BaseException as error:
            return [error for _ in begun]


def _halves(places: Sequence[int], turns: Mapping[int, Turn]) -> list[Sequence[int]]:
    """On a GPU, two batches: while the device trains the clients of one, the servers of the other work."""
    if len(places) < _TWO_BATCHES or not turns[places[0]].simulation.backend.asynchronous:
        return [places]
    return [places[::2], places[1::2]]


def _alternate(batches: Sequence[_Batch], courses: Sequence[Course], turns: dict[int, Turn], ended: Ended) -> None:
    """Compute all rounds of some batches. Every batch has begun a round while another one ends its own."""
    begun: deque[tuple[_Batch, list[int], Callable[[], list[RoundRecord | BaseException]]]] = deque()

    def begin(batch: _Batch) -> None:
        if live := [place for place in batch.places if place in turns]:
            begun.append((batch, live, batch.begin([turns.pop(place) for place in live])))

    for batch in batches:
        begin(batch)
    while begun:
        batch, live, finish = begun.popleft()
        for place, what in zip(live, finish(), strict=True):
            _ask(place, courses[place], turns, ended, _answer(what))
        begin(batch)


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
