"""Run the pieces of a plan in worker processes, as many at once as cores and memory allow.

The number of workers changes no result: a run's backend, chunk and threads come from its configuration. However the
work ends, each piece is an ordinary run's folder that can be resumed.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from counterpoise.comparisons.batches import batches
from counterpoise.comparisons.contents import COMPARISON, LOG
from counterpoise.comparisons.plan import Piece, Plan
from counterpoise.runs.failure import keep_failure
from counterpoise.runs.files import check_plain, open_plain
from counterpoise.runs.locks import hold, in_use
from counterpoise.runs.saved import status_of

__all__ = ["News", "conduct", "conducting", "held", "open_pieces", "workers_at_once"]

_LEAST = 2**30
"""Bytes that a worker is assumed to need until one has reported."""
_PATIENCE = 30.0
"""Seconds that the workers of a killed comparison get to write their checkpoints."""


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


def open_pieces(folder: Path, plan: Plan) -> list[Piece]:
    """The pieces still to run, seed by seed, so that all arms advance together.

    A run that diverged is left out, because it would diverge again.
    """
    by_arm = [list(plan.pieces(arm)) for arm in plan.arms]
    pieces = [piece for row in zip(*by_arm, strict=True) for piece in row]
    return [piece for piece in pieces if status_of(folder / piece.place) not in ("finished", "diverged")]


def workers_at_once(pieces: Sequence[Piece]) -> int:
    """How many workers to run at once: one on a GPU; on a CPU, as many as give two threads per core.

    This factor is a choice, not a measured optimum. No result depends on it.
    """
    most = 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for piece in pieces:
        engine, cohort = piece.values.get("engine", {}), piece.values.get("cohort")
        if str(engine.get("device", "auto")).startswith("cuda") or (
            engine.get("device", "auto") == "auto" and torch.cuda.is_available()
        ):
            return 1
        threads = min(engine.get("threads") or cores, cohort if type(cohort) is int else cores)
        most = max(most, 2 * cores // max(threads, 1))
    return min(most, cores, max(len(pieces), 1))


def held(folder: Path) -> contextlib.AbstractContextManager[int | None]:
    """Lock a comparison's folder. Workers inherit this lock, so if their parent was killed, wait until they end.

    A parent that is alive also locks the plan; then raise an error at once.
    """
    return hold(folder, _busy(folder), _PATIENCE, lambda: in_use(folder, COMPARISON))


def conducting(folder: Path) -> contextlib.AbstractContextManager[int | None]:
    """Lock a comparison's plan, which workers do not. Waiting helps if another process is just checking this lock."""
    return hold(folder, _busy(folder), _PATIENCE, name=COMPARISON)


def _busy(folder: Path) -> str:
    return f"Another process is at work in {folder}: the folder is in use. Wait for it to end, or stop it."


def conduct(
    folder: Path,
    pieces: Sequence[Piece],
    at_once: int,
    tell: Callable[[News | None], object],
    lock: int | None,
    together: int | None = None,
) -> None:
    """Run pieces in `at_once` workers, each with at most `together` pieces in one batch.

    `tell` gets news of every round and end, and None now and then so that a display can be refreshed.

    `lock` is the folder's lock, which the workers inherit. After an interruption, the workers write checkpoints before
    the exception reaches the caller.
    """
    check_plain(folder)
    waiting = list(reversed(batches(pieces, at_once, together)))
    crew: list[_Worker] = []
    heard: queue.Queue[tuple[_Worker, dict[str, Any] | None]] = queue.Queue()
    peak = _LEAST
    with os.fdopen(open_plain(folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as log:
        try:
            while waiting or any(worker.pieces for worker in crew):
                idle = next((worker for worker in crew if not worker.pieces), None)
                if waiting and idle is None and len(crew) < at_once and _room(crew, peak):
                    idle = _Worker(heard, log, lock)
                    crew.append(idle)
                if waiting and idle is not None:
                    idle.give(folder, waiting.pop(), together)
                    continue
                try:
                    worker, said = heard.get(timeout=0.5)
                except queue.Empty:
                    tell(None)
                    continue
                if said is None:
                    crew.remove(worker)
                    for piece in worker.pieces.values():
                        tell(_died(folder, piece, worker))
                    worker.pieces = {}
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


class _Worker:
    """A worker process, and the pieces it is running."""

    def __init__(
        self, heard: queue.Queue[tuple[_Worker, dict[str, Any] | None]], log: IO[bytes], lock: int | None
    ) -> None:
        self.pieces: dict[int, Piece] = {}
        """Those that have not ended, by their places in the list that it was given."""
        self.young = True
        """It has not finished a round, so it will need memory that is still free."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "counterpoise.comparisons.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # only the parent gets Ctrl-C
            pass_fds=() if lock is None else (lock,),
        )
        threading.Thread(target=self._hear, args=(heard,), daemon=True).start()

    def _hear(self, heard: queue.Queue[tuple[_Worker, dict[str, Any] | None]]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                heard.put((self, json.loads(line)))
        heard.put((self, None))

    def give(self, folder: Path, pieces: Sequence[Piece], together: int | None) -> None:
        assert self._process.stdin is not None
        self.pieces = dict(enumerate(pieces))
        order = [{"folder": str(folder / piece.place), "values": piece.values} for piece in pieces]
        with contextlib.suppress(BrokenPipeError):  # it has died, which its output will show
            self._process.stdin.write(json.dumps({"pieces": order, "together": together}) + "\n")
            self._process.stdin.flush()

    def dismiss(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def wait(self) -> int:
        """Wait for its exit status. A second Ctrl-C stops waiting and leaves the process running."""
        return self._process.wait()


def _room(crew: Sequence[_Worker], peak: int) -> bool:
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


def _died(folder: Path, piece: Piece, worker: _Worker) -> News:
    sentence = (
        f"Its process ended with status {worker.wait()} in the middle of the run, perhaps for lack of memory; "
        f"see {folder / LOG}. The same command tries again."
    )
    check_plain(folder)
    keep_failure(folder / piece.place, sentence + "\n")
    return News(piece, end="failed", sentence=sentence)
