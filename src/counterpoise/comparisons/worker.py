"""A process that does one run after another for `counterpoise.comparisons.conduct`: ``python -m counterpoise.comparisons.worker``.

Pieces come on standard input, news of them go to standard output, each a line of JSON. When the input ends, the worker does:
at once, and keeping a checkpoint, if it is in the middle of a run. So it outlives no parent, however that ended.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.errors import CounterpoiseError, Interrupted
from counterpoise.measures import has_personal, own_curve
from counterpoise.runs.build import setup
from counterpoise.runs.config import parse
from counterpoise.runs.contents import CONFIG, FAILURE
from counterpoise.runs.failure import keep_failure
from counterpoise.runs.files import Unsafe, check_plain
from counterpoise.runs.folder import busy
from counterpoise.runs.locks import Busy, in_use
from counterpoise.runs.removal import is_ours
from counterpoise.runs.simulate import resume, run_setup

__all__ = ["do", "main", "told"]


def do(folder: Path, values: Mapping[str, Any], on_round: Callable[[RoundRecord], object] | None = None) -> str:
    """Begin or go on with a run; returns why it failed, in one sentence that is also kept, or nothing.

    Nothing is kept in a folder that another process has or that holds links: it is not ours to write to.
    """
    try:
        check_plain(folder)
        if in_use(folder):
            raise Busy(busy(folder))
        config = parse(values, str(folder))
        if folder.is_dir() and is_ours(folder):
            (folder / FAILURE).unlink(missing_ok=True)  # of the last try; anything else of that name is not ours
        if (folder / CONFIG).exists():
            resume(folder, on_round=on_round)
        else:
            run_setup(setup(config), on_round, folder)
    except (Unsafe, Busy) as error:
        return str(error)
    except CounterpoiseError as error:
        return _failed(folder, str(error))
    except Exception as error:  # whatever it is, the others go on
        return _failed(folder, f"{type(error).__name__}: {error}", traceback.format_exc())
    return ""


def _failed(folder: Path, sentence: str, more: str = "") -> str:
    sentence = " ".join(sentence.split())
    keep_failure(folder, f"{sentence}\n{more}")
    return sentence


def main() -> None:
    """Do what comes until nothing more can."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    with contextlib.suppress(BrokenPipeError), os.fdopen(os.dup(1), "w", encoding="utf-8") as news:
        os.dup2(2, 1)  # what a library prints is no news
        orders: queue.Queue[dict[str, Any] | None] = queue.Queue()
        busy = threading.Event()
        threading.Thread(target=_listen, args=(orders, busy), daemon=True).start()
        while (order := orders.get()) is not None:
            busy.set()
            try:
                sentence = do(Path(order["folder"]), order["values"], lambda record: _tell(news, **_shown(record)))
            except Interrupted:
                return
            busy.clear()
            _tell(news, end="failed" if sentence else "finished", sentence=sentence)


def _listen(orders: queue.Queue[dict[str, Any] | None], busy: threading.Event) -> None:
    for line in sys.stdin:
        orders.put(json.loads(line))
    orders.put(None)
    if busy.is_set():
        os.kill(os.getpid(), signal.SIGTERM)  # which a run takes as a request to stop


def _shown(record: RoundRecord) -> dict[str, Any]:
    return {"round": record.round, "metrics": told(record), "seconds": record.seconds, "memory": record.memory}


def told(record: RoundRecord) -> dict[str, float]:
    """A round's metrics for a board: on the test set, and the mean over clients by the model that each would use.

    The latter is ``personal_...`` if the method makes personal models, ``own_...`` if it is the server's.
    """
    means: dict[str, float] = {}
    for metric in {name.removeprefix("personal_") for name in record.clients}:
        kind = "personal" if has_personal([record], metric) else "own"
        means |= {f"{kind}_{metric}": value for _, value in own_curve([record], metric)}
    return {**record.metrics, **means}


def _tell(news: TextIO, **what: Any) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more, and the input has ended too
        news.write(json.dumps(what) + "\n")
        news.flush()


if __name__ == "__main__":
    main()
