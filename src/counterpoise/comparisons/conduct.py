"""Run the pieces of a plan in worker processes: one on each GPU, or as many as cores and memory allow.

The number of workers changes results by no more than rounding: it decides which runs train as one batch. However the
work ends, each piece is an ordinary run's folder that can be resumed.
"""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from counterpoise.comparisons.batches import batches
from counterpoise.comparisons.contents import COMPARISON, LOG
from counterpoise.comparisons.placement import Place, Seats, device_of, gpu_names, seats_for
from counterpoise.comparisons.plan import Piece, Plan
from counterpoise.comparisons.process import Heard, Worker
from counterpoise.runs.failure import keep_failure
from counterpoise.runs.files import check_plain, open_plain
from counterpoise.runs.locks import hold, in_use
from counterpoise.runs.saved import status_of

__all__ = ["News", "Tell", "Warn", "conduct", "conducting", "held", "open_pieces", "seats_here"]

_LEAST = 2**30
"""Bytes that a worker is assumed to need until one has reported."""
_PATIENCE = 30.0
"""Seconds that the workers of a killed comparison get to write their checkpoints."""


Warn = Callable[[str], object]
"""Gets each warning of a worker."""


@dataclass(frozen=True)
class News:
    """What a worker reports: a round of a piece, or its end."""

    piece: Piece
    round: int = 0
    metrics: Mapping[str, float] | None = None
    seconds: float = 0.0
    end: str = ""
    """finished or failed"""
    sentence: str = ""


Tell = Callable[[News | None], object]
"""Gets news of every round and end, and None now and then so that a display can be refreshed."""


def open_pieces(folder: Path, plan: Plan) -> list[Piece]:
    """The pieces still to run, seed by seed, so that all arms advance together.

    A run that diverged is left out, because it would diverge again.
    """
    by_arm = [list(plan.pieces(arm)) for arm in plan.arms]
    pieces = [piece for row in zip(*by_arm, strict=True) for piece in row]
    return [piece for piece in pieces if status_of(folder / piece.place) not in ("finished", "diverged")]


def seats_here(pieces: Sequence[Piece], jobs: int | None = None) -> Seats:
    """The workers for some pieces on this machine. Counting its GPUs asks the driver, and opens none of them."""
    return seats_for(pieces, torch.cuda.device_count(), jobs)


def held(folder: Path, plan: str = COMPARISON) -> contextlib.AbstractContextManager[int | None]:
    """Lock a comparison's folder. Workers inherit this lock, so they still hold it if their parent was killed.

    In that case, wait until they end. A parent that is alive also holds the lock of the plan, the file of this name; in
    that case, raise an error at once.
    """
    return hold(folder, _busy(folder), _PATIENCE, lambda: in_use(folder, plan))


def conducting(folder: Path, plan: str = COMPARISON) -> contextlib.AbstractContextManager[int | None]:
    """Lock a comparison's plan. Workers do not inherit this lock. Wait, because `held` may take it briefly to check it."""
    return hold(folder, _busy(folder), _PATIENCE, name=plan)


def _busy(folder: Path) -> str:
    return f"Another process is at work in {folder}: the folder is in use. Wait for it to end, or stop it."


def conduct(
    folder: Path,
    pieces: Sequence[Piece],
    seats: Seats,
    tell: Tell,
    lock: int | None,
    together: int | None = None,
    warn: Warn = lambda sentence: None,
) -> None:
    """Run pieces in as many workers as there are seats, each with at most `together` pieces in one batch.

    `lock` is the folder's lock, which the workers inherit. `warn` gets the workers' warnings. After an interruption, the
    workers write checkpoints before the exception reaches the caller.
    """
    check_plain(folder)
    waiting = batches(pieces, seats.most, together)
    names = gpu_names(os.environ, seats.gpus)
    crew: list[Worker] = []
    heard: Heard = queue.Queue()
    peak = _LEAST
    with os.fdopen(open_plain(folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as log:
        try:
            while waiting or any(worker.pieces for worker in crew):
                if (found := _next(waiting, seats, crew)) is not None:
                    batch, place = found
                    worker = _seated(crew, place)
                    if worker is None and _room(crew, peak):
                        worker = Worker(heard, log, lock, place, place.environment(names))
                        crew.append(worker)
                    if worker is not None:
                        worker.give(folder, waiting.pop(batch), together, seats.sharing(place))
                        continue
                try:
                    worker, said = heard.get(timeout=0.5)
                except queue.Empty:
                    tell(None)
                    continue
                if said is None:
                    if worker in crew:
                        crew.remove(worker)
                    for piece in worker.pieces.values():
                        tell(_died(folder, piece, worker))
                    worker.pieces = {}
                elif "warning" in said:
                    warn(said["warning"])
                elif "end" in said:
                    tell(News(worker.pieces.pop(said["piece"]), end=said["end"], sentence=said["sentence"]))
                else:
                    worker.young = False
                    peak = max(peak, said["memory"])
                    tell(News(worker.pieces[said["piece"]], said["round"], said["metrics"], said["seconds"]))
        finally:
            for worker in crew:
                worker.dismiss()
            for worker in crew:
                worker.wait()


def _next(waiting: Sequence[Sequence[Piece]], seats: Seats, crew: Sequence[Worker]) -> tuple[int, Place] | None:
    """The first batch that there is a place for now, and that place."""
    taken = [worker.place.gpu for worker in crew if worker.pieces]
    for number, batch in enumerate(waiting):
        if (place := seats.free(device_of(batch[0]), taken)) is not None:
            return number, place
    return None


def _seated(crew: list[Worker], place: Place) -> Worker | None:
    """The idle worker at a place. If there is none, the idle workers elsewhere are dismissed to make room for one."""
    idle = [worker for worker in crew if not worker.pieces]
    for worker in idle:
        if worker.place == place:
            return worker
    for worker in idle:
        crew.remove(worker)
        worker.dismiss()
        worker.wait()
    return None


def _room(crew: Sequence[Worker], peak: int) -> bool:
    """Whether there is memory for one more worker beside those still growing. The first may always start."""
    free = _free_memory()
    growing = sum(worker.young for worker in crew)
    return not crew or free is None or free > 1.25 * peak * (growing + 1)


def _free_memory() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def _died(folder: Path, piece: Piece, worker: Worker) -> News:
    sentence = (
        f"Its process ended with status {worker.wait()} in the middle of the run, perhaps for lack of memory; "
        f"see {folder / LOG}. The same command tries again."
    )
    check_plain(folder)
    keep_failure(folder / piece.place, sentence + "\n")
    return News(piece, end="failed", sentence=sentence)
