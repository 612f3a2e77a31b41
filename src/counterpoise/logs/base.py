"""What a logger is, and how a run calls it."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.errors import CounterpoiseError, check_call, takes_only_its_options, unknown

__all__ = ["LOGGERS", "Log", "Logger", "Start", "logged", "resolve", "scalars"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """What a logger is told when a run begins or resumes."""

    method: str
    seed: int
    settings: Mapping[str, Any]
    """The complete configuration; empty for a run that is not kept."""
    folder: Path | None
    round: int
    """Rounds done before: 0 for a new run."""


@takes_only_its_options()
@dataclass(frozen=True)
class Logger:
    """Three functions that a run calls: `begin`, then `round` after each round, then `end`."""

    begin: Callable[[Start], object]
    round: Callable[[RoundRecord], object]
    end: Callable[[str], object]
    """How it ended: finished, stopped (by a signal) or failed."""

    def __post_init__(self) -> None:
        for called in ("begin(start)", "round(record)", "end(status)"):
            check_call(getattr(self, called.partition("(")[0]), called, "Logger")


Log = Logger | str | Sequence[Logger | str]

LOGGERS: dict[str, Callable[[], Logger]] = {}
"""Loggers by name; each writes to its default place."""


def resolve(given: Log | None) -> list[Logger]:
    """The loggers that a user gave, or gave the names of."""
    each = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    found = []
    for one in each:
        if isinstance(one, str):
            if one not in LOGGERS:
                raise unknown("logger", one, LOGGERS)
            one = LOGGERS[one]()
        if not isinstance(one, Logger):
            raise CounterpoiseError(f"log takes loggers or their names ({', '.join(sorted(LOGGERS))}), not {one!r}.")
        found.append(one)
    return found


@contextlib.contextmanager
def logged(loggers: Sequence[Logger], start: Start) -> Iterator[Callable[[RoundRecord], None]]:
    """Tell loggers when a run begins and ends; yield the function that tells them about a round.

    A logger that fails after it began is dropped with a warning, because the run is worth more than its log.
    """
    for one in loggers:
        one.begin(start)
    going = list(loggers)

    def tell(call: Callable[[Logger], object]) -> None:
        for one in list(going):
            try:
                call(one)
            except Exception as error:
                going.remove(one)
                log.warning("A logger failed and is not called again in this run: %s: %s", type(error).__name__, error)

    status = "finished"
    try:
        yield lambda record: tell(lambda one: one.round(record))
    except KeyboardInterrupt:
        status = "stopped"
        raise
    except BaseException:
        status = "failed"
        raise
    finally:
        tell(lambda one: one.end(status))


def scalars(record: RoundRecord) -> dict[str, float]:
    """The finite numbers of a round, by name: the server's metrics, the clients' means, and the cost."""
    found = {f"server/{name}": value for name, value in record.metrics.items()}
    for name, values in record.clients.items():
        each = [value for value in values.values() if not math.isnan(value)]
        found |= {f"clients/{name}_mean": sum(each) / len(each)} if each else {}
    found |= {"clients/heard": len(record.outcome.claims) - len(record.outcome.excluded.keys() & record.outcome.claims)}
    found |= {f"cost/{name}": getattr(record, name) for name in ("seconds", "bytes_up", "bytes_down", "memory")}
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}
