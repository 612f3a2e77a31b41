"""The rounds of a run, one by one.

A run asks for its rounds (`Turn`) and is given their records, so that whoever drives it decides how they are computed:
alone (`drive`) or in one batch with other runs (`counterpoise.runs.together`). However a run ends, its folder holds a
complete checkpoint of its last good round.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from counterpoise.engine.backends.distributed import rank
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.engine.rounds.simulation import Batch, Simulation
from counterpoise.errors import Diverged, Failed, Interrupted
from counterpoise.logs.base import Logger, Start, logged
from counterpoise.measures.stopping import When
from counterpoise.runs.ending import doubts, untrained
from counterpoise.runs.run import Run
from counterpoise.texts import counted

if TYPE_CHECKING:
    from counterpoise.runs.folder import Folder

__all__ = ["Course", "OnRound", "Turn", "drive", "go", "pause_between_saves", "stoppable"]

OnRound = Callable[[RoundRecord], object]
"""Called after every round. The run ends if it returns something true."""

_SHORTEST_PAUSE, _LONGEST_PAUSE = 5.0, 60.0
"""Seconds between two saves of a run."""
_SHARE = 0.02
"""The part of the time that a batch of runs may spend on saving, within these limits."""

logger = logging.getLogger(__name__)


class Turn(NamedTuple):
    """A run's request for its next round."""

    simulation: Simulation
    last: bool
    """Whether the round is the run's last, which is always evaluated."""


Course = Generator[Turn, RoundRecord, Run]
"""A run as a generator. It yields a `Turn` for each round; send it the round's record, or throw in what stopped it."""


def drive(course: Course) -> Run:
    """Compute a run's rounds here, one after another."""
    try:
        turn = next(course)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    with stoppable([turn.simulation.backend.halt]) as signals:
        try:
            while True:
                try:
                    record = turn.simulation.advance(turn.last)
                except BaseException as error:
                    turn = course.throw(error)
                else:
                    turn = course.send(record)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except Interrupted as error:
            error.signal = signals[0] if signals else signal.SIGINT
            raise


_BLIND = (
    "Nothing but the training loss will be measured: there is no test set, and no client holds samples back. "
    "Give a test set, or hold a part of every client's samples back, such as heldout=0.2."
)


def go(
    simulation: Simulation,
    run: Run,
    rounds: int,
    on_round: OnRound | None,
    folder: Folder | None,
    loggers: Sequence[Logger],
    rule: When | None = None,
) -> Course:
    """Ask for the remaining rounds and report each to the loggers. The rule may end the run before its last round."""
    if simulation.trainer.evaluator.blind and not simulation.round and not rank():
        logger.warning("%s", _BLIND)
    if not loggers:
        return (yield from _kept(simulation, run, rounds, on_round, folder, rule))
    start = Start(run.method, run.seed, run.settings, run.folder, simulation.round)
    with logged(loggers, start) as tell:

        def hear(record: RoundRecord) -> object:
            tell(record)
            return on_round is not None and on_round(record)

        return (yield from _kept(simulation, run, rounds, hear, folder, rule))


def _kept(
    simulation: Simulation,
    run: Run,
    rounds: int,
    on_round: OnRound | None,
    folder: Folder | None,
    rule: When | None,
) -> Course:
    """Ask for the remaining rounds and keep each as soon as it ends."""
    reason: Diverged | Failed | Interrupted | None = None
    where = "" if folder is None else str(folder.path)
    try:
        status = yield from _rounds(simulation, run, rounds, on_round, folder, rule)
        if status == "finished" and (why := untrained(run.rounds)):
            status = "failed"
            how = "" if folder is None else f" Remove the cause, then {folder.how_to_repeat(2 * rounds)}"
            reason = Failed(f"{why} The model is the one the run began with.{how}")
    except Diverged as error:
        status = "diverged"
        kept = f" The rounds before it are kept in {where}." if where else ""
        reason = Diverged(
            f"{error} This was in round {simulation.round + 1}; the model is the one from before that round.{kept}"
        )
    except Interrupted:
        status = "stopped"
        how = "" if folder is None else f" Continue with: {folder.how_to_resume}"
        reason = Interrupted(f"Stopped after round {simulation.round} of {rounds}.{how}")
    except Exception as error:
        if not simulation.server.whole:
            kept = f" The run in {where} can be resumed from its last checkpoint." if where else ""
            error.add_note(f"Round {simulation.round + 1} was only partly written and is dropped.{kept}")
        else:
            if folder is not None and len(run.rounds) == simulation.round == folder.written:
                folder.save(simulation.loop, "failed")
            kept = f" in {where}." if where else "."
            error.add_note(f"The run has {counted(simulation.round, 'good round')}{kept}")
        if folder is not None:
            from counterpoise.runs.failure import keep_error

            keep_error(folder.path, error)
        raise
    run.status = status
    run.model = simulation.trained()
    if folder is not None:
        folder.save(simulation.loop, status)
    if reason is not None:
        reason.run = run
        raise reason
    for sentence in (
        doubts(run.rounds, simulation.server.limits.norm_ratio) if status == "finished" and not rank() else ()
    ):
        logger.warning("%s", sentence)
    return run


def _rounds(
    simulation: Simulation,
    run: Run,
    rounds: int,
    on_round: OnRound | None,
    folder: Folder | None,
    rule: When | None,
) -> Generator[Turn, RoundRecord, str]:
    saved, pause = time.monotonic(), pause_between_saves(0.0, 1)
    noted: list[Batch | None] = []
    while simulation.round < rounds:
        record = yield Turn(simulation, last=simulation.round + 1 == rounds)
        run.rounds.append(record)
        if rule is not None and simulation.round < rounds and (why := rule.reason(run.rounds)):
            run.why, run.rounds[-1] = why, (record := simulation.complete(record))
        if folder is not None:
            if [simulation.batch] != noted:
                noted = [simulation.batch]
                folder.note_batch(simulation.batch, record.round)
            folder.append(record)
            if (begun := time.monotonic()) - saved > pause:
                folder.save(simulation.loop, "running")
                saved = time.monotonic()
                pause = pause_between_saves(saved - begun, simulation.batch.runs if simulation.batch else 1)
        enough = on_round is not None and bool(on_round(record))
        if run.why or simulation.round == rounds:
            return "finished"
        if simulation.backend.halt.is_set():
            raise Interrupted
        if enough:
            return "stopped"
    return "finished"


def pause_between_saves(seconds: float, runs: int) -> float:
    """How long a run waits until it saves again, if saving took it `seconds` and it trains with `runs` in one batch.

    All of them wait while one saves.
    """
    return min(max(_SHORTEST_PAUSE, seconds * runs / _SHARE), _LONGEST_PAUSE)


@contextlib.contextmanager
def stoppable(halts: Sequence[threading.Event]) -> Iterator[list[int]]:
    """The first Ctrl-C or SIGTERM sets `halts`, which end runs between two steps; a second one ends them at once.

    Yields the list of signals received.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)
        for halt in halts:
            halt.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
