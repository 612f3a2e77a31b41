"""A process that does runs for `counterpoise.comparisons.conduct`; those that can train as one batch do so.

It is started with ``python -P -m counterpoise.comparisons.worker``. It reads lists of pieces from standard input and
writes news of them to standard output, each as one line of JSON. It ends when its input ends, that is, when its parent
has ended in whatever way. If it is in the middle of runs then, it first writes their checkpoints.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from counterpoise.engine.backends.settings import Engine
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.errors import Interrupted
from counterpoise.measures import CLIENT, PERSONAL, curve_by
from counterpoise.own import allow
from counterpoise.runs.build import setup
from counterpoise.runs.config import parse
from counterpoise.runs.contents import CONFIG
from counterpoise.runs.course import Course, OnRound
from counterpoise.runs.failure import forget_failure, keep_error
from counterpoise.runs.files import Unsafe, check_plain
from counterpoise.runs.folder import busy
from counterpoise.runs.locks import Busy, in_use
from counterpoise.runs.run import Run
from counterpoise.runs.starting import resume_course, setup_course
from counterpoise.runs.together import drive_together
from counterpoise.runs.trust import check_unchanged, own_names

__all__ = ["begin", "display_metrics", "failure", "main", "work"]


def begin(folder: Path, values: Mapping[str, Any], on_round: OnRound | None = None) -> Course:
    """Begin or resume a run."""
    check_plain(folder)
    if in_use(folder):
        raise Busy(busy(folder))
    config = parse(values, str(folder))
    forget_failure(folder)
    if (folder / CONFIG).exists():
        return (yield from resume_course(folder, on_round=on_round, asked=Engine(**dict(config.engine))))
    check_unchanged(own_names(values), config.code, str(folder), part=True)  # the plan lists the code of all its runs
    return (yield from setup_course(setup(config), on_round, folder))


def failure(folder: Path | None, error: Exception) -> str:
    """One sentence that says why a run failed.

    It is also written into the run's folder, if there is one, unless another process uses it or it holds links.
    """
    if isinstance(error, Unsafe | Busy):
        return str(error)
    return keep_error(folder, error)


def work(
    pieces: Sequence[Mapping[str, Any]], together: int | None, tell: Callable[..., object], sharing: int = 1
) -> None:
    """Run some pieces, at most `together` in one batch, and report their rounds and ends.

    `sharing` is how many workers share the memory here.
    """

    def ended(place: int, what: Run | BaseException) -> None:
        if isinstance(what, Exception):
            tell(piece=place, end="failed", sentence=failure(Path(pieces[place]["folder"]), what))
        elif isinstance(what, Run):
            tell(piece=place, end="finished", sentence="")

    def telling(place: int) -> OnRound:
        return lambda record: tell(piece=place, **_shown(record))

    courses = [begin(Path(p["folder"]), p["values"], telling(place)) for place, p in enumerate(pieces)]
    drive_together(courses, ended, together, sharing)


def main() -> None:
    """Run pieces until the input ends."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    with contextlib.suppress(BrokenPipeError), os.fdopen(os.dup(1), "w", encoding="utf-8") as news:
        os.dup2(2, 1)  # what libraries print goes to standard error
        logging.getLogger().addHandler(_Telling(partial(_tell, news)))
        orders: queue.Queue[dict[str, Any] | None] = queue.Queue()
        busy = threading.Event()
        threading.Thread(target=_listen, args=(orders, busy), daemon=True).start()
        while (order := orders.get()) is not None:
            busy.set()
            for name, folder in order["own"].items():
                allow(name, Path(folder))
            try:
                work(order["pieces"], order["together"], partial(_tell, news), order["sharing"])
            except Interrupted:
                return
            busy.clear()


class _Telling(logging.Handler):
    """Tells the parent of warnings, which otherwise only the log would hold."""

    def __init__(self, tell: Callable[..., object]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(warning=record.getMessage())


def _listen(orders: queue.Queue[dict[str, Any] | None], busy: threading.Event) -> None:
    with contextlib.suppress(json.JSONDecodeError):  # the parent was stopped in the middle of an order
        for line in sys.stdin:
            orders.put(json.loads(line))
    orders.put(None)
    if busy.is_set():
        os.kill(os.getpid(), signal.SIGTERM)  # a run then stops with a checkpoint


def _shown(record: RoundRecord) -> dict[str, Any]:
    return {
        "round": record.round,
        "metrics": display_metrics(record),
        "seconds": record.seconds,
        "memory": record.memory,
    }


def display_metrics(record: RoundRecord) -> dict[str, float]:
    """A round's metrics for display: those on the test set, and means over clients (see `counterpoise.measures.curve_by`).

    Those of personal models are there only if the method makes them.
    """
    names = [name if name.startswith(PERSONAL) else CLIENT + name for name in record.clients]
    means = {name: value for name in names for _, value in curve_by([record], name)}
    return {**record.metrics, **means}


def _tell(news: TextIO, **what: Any) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent has ended, so the input ends too
        news.write(json.dumps(what) + "\n")
        news.flush()


if __name__ == "__main__":
    gc.freeze()  # the modules stay until the end, so no collection need look through their objects
    main()
