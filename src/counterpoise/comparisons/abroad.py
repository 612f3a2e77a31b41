"""Run the pieces of a plan through an executor: on a cluster, or wherever else it sends its work.

The executor decides who works when and where. The workers' progress is read from the pieces' folders, which lie on a
file system that all machines share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from counterpoise.comparisons.batches import batches
from counterpoise.comparisons.conduct import News, Tell, Warn
from counterpoise.comparisons.far import carry_out, order
from counterpoise.comparisons.plan import Piece
from counterpoise.comparisons.sign import signed
from counterpoise.comparisons.watching import Watch
from counterpoise.comparisons.worker import display_metrics
from counterpoise.runs.failure import keep_failure
from counterpoise.runs.files import check_plain
from counterpoise.runs.locks import in_use
from counterpoise.runs.saved import status_of

__all__ = ["Executor", "conduct_abroad"]

_SECONDS_BETWEEN_LOOKS = 0.3
_PATIENCE = 30.0
"""Seconds that a run gets to write its checkpoint after the cluster's worker that started it was lost."""


class Future(Protocol):
    """What an executor returns."""

    def done(self) -> bool: ...
    def result(self) -> Any: ...
    def cancel(self) -> Any: ...


class Executor(Protocol):
    """The part of `concurrent.futures.Executor` that is needed."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future: ...


class _Sent(NamedTuple):
    """Pieces that were given to the executor together."""

    future: Future
    open: dict[int, tuple[Piece, Watch]]
    """The pieces whose end has not been reported, by their places in the list that was sent."""


def conduct_abroad(
    executor: Executor,
    folder: Path,
    pieces: Sequence[Piece],
    workers: int,
    tell: Tell,
    together: int | None = None,
    most: int | None = None,
    sharing: int = 1,
    warn: Warn = lambda sentence: None,
) -> None:
    """Run pieces on the workers of an executor, in lists that suit this many workers, at most `most` lists at a time.

    `sharing` is how many lists share the memory of one machine. `warn` gets the workers' warnings. After an
    interruption, the workers are asked to write checkpoints, and those that are at work are waited for.
    """
    check_plain(folder)
    folder = folder.resolve()
    waiting = batches(pieces, max(workers, 1), together)
    sent: list[_Sent] = []
    with signed(folder) as (word, take_down):
        try:
            while waiting or sent:
                while waiting and (most is None or len(sent) < most):
                    batch = waiting.pop(0)
                    try:
                        future = executor.submit(carry_out, order(folder, word, batch, together, sharing))
                    except Exception as error:
                        _tell_all(tell, [_failed(folder, piece, _lost(error)) for piece in batch])
                        continue
                    watched = ((piece, Watch(folder / piece.place)) for piece in batch)
                    sent.append(_Sent(future, dict(enumerate(watched))))
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                tell(None)
                for one in list(sent):
                    done = one.future.done()  # before the folders are read, so that they are complete
                    _tell_all(tell, _rounds(folder, one.open))
                    if done:
                        sent.remove(one)
                        _tell_all(tell, _ends(folder, one, warn))
        finally:
            take_down()
            while any(_at_work(folder, one) for one in sent):
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            for one in sent:
                one.future.cancel()  # those that have not begun; the others end because the sign is gone


def _at_work(folder: Path, sent: _Sent) -> bool:
    return not sent.future.done() and any(in_use(folder / piece.place) for piece, _ in sent.open.values())


def _tell_all(tell: Tell, news: Sequence[News] | Iterator[News]) -> None:
    for one in news:
        tell(one)


def _rounds(folder: Path, pieces: dict[int, tuple[Piece, Watch]]) -> Iterator[News]:
    """News from the pieces' folders: their rounds, and which have finished."""
    for number, (piece, watch) in list(pieces.items()):
        yield from _written(piece, watch)
        all_done = watch.last == piece.values["rounds"] or (watch.last and piece.values.get("stop"))
        if all_done and status_of(folder / piece.place) == "finished":
            yield from _written(piece, watch)  # a rule may have ended the run since its rounds were read
            del pieces[number]
            yield News(piece, end="finished")


def _written(piece: Piece, watch: Watch) -> Iterator[News]:
    for record in watch.rounds():
        yield News(piece, record.round, display_metrics(record), record.seconds)


def _ends(folder: Path, sent: _Sent, warn: Warn) -> Iterator[News]:
    """News of the pieces whose ends have not been reported yet."""
    try:
        answer: Mapping[str, Any] = sent.future.result()
    except Exception as error:
        answer = {"ends": {}, "warnings": [], "sentence": _lost(error)}
    for sentence in answer["warnings"]:
        warn(sentence)
    why = answer["sentence"] or "Its worker stopped before the end."
    for number, (piece, _) in sent.open.items():
        if (end := answer["ends"].get(str(number))) is not None:
            yield News(piece, **end)
        else:
            yield _failed(folder, piece, why)


def _lost(error: Exception) -> str:
    if isinstance(error, ImportError):
        return f"Its worker cannot import what it needs: {error}. Install counterpoise where the workers run."
    return f"Its worker was lost ({type(error).__name__}: {' '.join(str(error).split())[:300]})."


def _failed(folder: Path, piece: Piece, why: str) -> News:
    sentence = f"{why} The same command tries again."
    until = time.monotonic() + _PATIENCE
    while working := in_use(folder / piece.place):
        if time.monotonic() > until:
            break
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    if not working:  # else somebody is at work there after all
        keep_failure(folder / piece.place, sentence + "\n")
    return News(piece, end="failed", sentence=sentence)
