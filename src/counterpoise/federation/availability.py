"""Who takes part in a round: who is asked, and who of them drops out before it ends.

An availability depends only on seed, round and federation, so that all methods compared under one seed
meet the same clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError, brief, check_call, takes_only_its_options
from counterpoise.federation.absence import AWAY, DROPPED, FAILED, SILENT
from counterpoise.federation.assignment import Assignment
from counterpoise.randomness import counter, permuted, purpose, sample, uniform
from counterpoise.registry import Option, Registry, Spec
from counterpoise.texts import MOST_LINE, parse_json, read_lines, read_text

__all__ = [
    "AVAILABILITIES",
    "Availability",
    "Call",
    "Sampler",
    "availability",
    "bernoulli",
    "day_and_night",
    "everyone",
    "replay",
    "stragglers",
    "uniformly",
    "weighted",
]

Sampler = Callable[[int, int, int], Tensor]
"""A user's own sampler: ``(seed, round, population) -> client numbers``"""


class Call(NamedTuple):
    """The clients asked in a round, and those of them that will not reply."""

    asked: Sequence[int]
    dropped: Sequence[int] = ()


@takes_only_its_options()
@dataclass(frozen=True)
class Availability:
    """Who takes part in a round, `call(seed, round, clients)`, and about how many, `size(clients)`."""

    call: Callable[[int, int, Assignment], Call]
    size: Callable[[Assignment], int]
    spec: Spec = field(default_factory=Spec)

    def __post_init__(self) -> None:
        check_call(self.call, "call(seed, round, clients)", "Availability")
        check_call(self.size, "size(clients)", "Availability")


AVAILABILITIES: Registry[Availability] = Registry("availability", Availability)
Count = Annotated[int | float, Option("clients a round: a whole number, or a fraction of all")]

Rounds = Annotated[str | list, Option("a run's folder, a JSON file, or a list of client numbers for each round")]  # type: ignore[type-arg]


def availability(cohort: object) -> Availability:
    """The availability that a user asks for by a number, a fraction, None (all), an availability or a function."""
    if isinstance(cohort, Availability):
        return cohort
    if cohort is None:
        return everyone()
    if callable(cohort):
        return _own(cohort)
    if isinstance(cohort, bool) or not isinstance(cohort, int | float):
        raise CounterpoiseError(
            f"cohort must be a number of clients, a fraction of them or nothing (all), not {cohort!r}."
        )
    return uniformly(_check_cohort(cohort))


def _check_cohort(cohort: int | float) -> int | float:
    if isinstance(cohort, float) and not 0 < cohort <= 1:
        raise CounterpoiseError(f"cohort as a fraction must be above 0 and at most 1, not {cohort!r}.")
    return cohort


def _own(sampler: Sampler) -> Availability:
    check_call(sampler, "cohort(seed, round, population)", "simulate")

    def asked(seed: int, round: int, held: Assignment) -> list[int]:
        drawn: Any = sampler(seed, round, held.clients)
        clients = drawn.tolist() if isinstance(drawn, Tensor | np.ndarray) else drawn
        if not isinstance(clients, Sequence) or not all(isinstance(client, Integral) for client in clients):
            raise CounterpoiseError(f"The cohort's sampler must return client numbers, not {brief(drawn)}.")
        return [int(client) for client in clients]

    return Availability(lambda *given: Call(asked(*given)), lambda held: len(asked(0, 1, held)))


def _count(asked: int | float, clients: int) -> int:
    """The number of clients that a number or a fraction stands for."""
    if isinstance(_check_cohort(asked), float):
        return max(1, round(asked * clients))
    if not 0 <= asked <= clients:
        raise CounterpoiseError(f"cohort must be from 0 (nobody) to the {clients} clients there are, not {asked!r}.")
    return int(asked)


@AVAILABILITIES.register("all")
def everyone() -> Availability:
    """Every client, in every round."""
    return Availability(lambda seed, round, held: Call(range(held.clients)), lambda held: held.clients)


@AVAILABILITIES.register("uniform")
def uniformly(clients: Count) -> Availability:
    """A fixed number of clients, all equally likely."""

    def call(seed: int, round: int, held: Assignment) -> Call:
        count = _count(clients, held.clients)
        everybody = count == held.clients  # a random order of all would give the same
        return Call(range(count) if everybody else sample(held.clients, count, seed, purpose("cohort"), round).tolist())

    return Availability(call, lambda held: _count(clients, held.clients))


_DRAWS = 1000
"""A round that nobody joins is drawn again, up to this many times."""


@AVAILABILITIES.register("bernoulli")
def bernoulli(
    rate: Annotated[float, Option("chance that a client takes part in a round", above=0, high=1)],
) -> Availability:
    """Each client takes part by a chance of its own; a round that nobody would join is drawn again."""

    def call(seed: int, round: int, held: Assignment) -> Call:
        everyone = torch.arange(held.clients)
        for again in range(_DRAWS):
            joins = uniform(counter(seed, purpose("bernoulli"), round, again, everyone)) < rate
            if joins.any():
                return Call(everyone[joins].tolist())
        raise CounterpoiseError(
            f"availability bernoulli: in {_DRAWS} draws of round {round}, none of {held.clients} clients took part at "
            f"a rate of {rate:g}. Use a higher rate."
        )

    return Availability(call, lambda held: max(1, round(rate * held.clients)))


@AVAILABILITIES.register("weighted")
def weighted(
    clients: Count,
    weights: Annotated[list | None, Option("one number per client; by default how much data it has")] = None,  # type: ignore[type-arg]
) -> Availability:
    """A fixed number of clients, drawn by weight without replacement (Efraimidis and Spirakis 2006)."""
    if weights is not None and not all(
        isinstance(w, int | float) and 0 <= w < float("inf") and not isinstance(w, bool) for w in weights
    ):
        raise CounterpoiseError("availability weighted: every weight must be a number at least 0.")

    def call(seed: int, round: int, held: Assignment) -> Call:
        everyone = torch.arange(held.clients)
        given = held.sizes(everyone) if weights is None else torch.tensor(weights)
        if len(given) != held.clients:
            raise CounterpoiseError(
                f"availability weighted: {len(given)} weights were given for {held.clients} clients; give one for each."
            )
        # Exponential clocks run at these rates, so that the next one to ring is drawn by weight.
        waiting = -uniform(counter(seed, purpose("weighted"), round, everyone)).neg().log1p() / given.double()
        count = min(_count(clients, held.clients), int((given > 0).sum()))
        return Call(waiting.nan_to_num(nan=float("inf")).topk(count, largest=False).indices.tolist())

    return Availability(call, lambda held: _count(clients, held.clients))


@AVAILABILITIES.register("day-and-night")
def day_and_night(
    clients: Count,
    period: Annotated[int, Option("rounds in a day", low=2)] = 24,
    share: Annotated[float, Option("fraction of the day in which a client can be asked", above=0, high=1)] = 0.5,
    zones: Annotated[int, Option("evenly spaced time zones; each client lives in one", low=1)] = 24,
) -> Availability:
    """A fixed number of the clients for whom it is night; all of them if there are too few."""

    def awake(seed: int, round: int, ids: Tensor) -> Tensor:
        zone = counter(seed, purpose("time zone"), ids) % zones
        return (round / period + zone / zones) % 1 < share

    def call(seed: int, round: int, held: Assignment) -> Call:
        count, found = _count(clients, held.clients), []
        for ids in _shuffled(held.clients, max(1024, 4 * count), seed, round):
            found += ids[awake(seed, round, ids)].tolist()
            if len(found) >= count:
                break
        return Call(found[:count])

    return Availability(call, lambda held: _count(clients, held.clients))


def _shuffled(population: int, block: int, seed: int, round: int) -> Iterator[Tensor]:
    """All clients in a random order, a block at a time, so that a caller who finds enough early pays for no more."""
    key = counter(seed, purpose("cohort"), round)
    for start in range(0, population, block):
        yield permuted(key, torch.arange(start, min(population, start + block)), population)


@AVAILABILITIES.register("stragglers")
def stragglers(
    of: Annotated[Availability | int | float | None, Option("who is asked; by default all")] = None,
    rate: Annotated[
        float, Option("chance that a slow client drops out of a round it was asked in", low=0, high=1)
    ] = 0.1,
    slow: Annotated[float, Option("fraction of the clients that are slow, always the same ones", low=0, high=1)] = 1.0,
) -> Availability:
    """Some of the clients asked drop out before they reply; the run records who."""
    base = availability(of)

    def call(seed: int, round: int, held: Assignment) -> Call:
        asked, dropped = base.call(seed, round, held)
        ids = torch.as_tensor(list(asked), dtype=torch.int64)
        is_slow = uniform(counter(seed, purpose("slow"), ids)) < slow
        drops = uniform(counter(seed, purpose("straggler"), round, ids)) < rate
        return Call(asked, sorted({*dropped, *ids[is_slow & drops].tolist()}))

    return Availability(call, base.size)


@AVAILABILITIES.register("replay")
def replay(
    rounds: Rounds,
    repeat: Annotated[bool, Option("begin again after the last round")] = False,
) -> Availability:
    """The participation of an earlier run, or of a real deployment, round by round, including dropouts."""
    recorded = [_read_round(one, rounds) for one in (_lines(Path(rounds)) if isinstance(rounds, str) else rounds)]
    if not recorded:
        raise CounterpoiseError("availability replay: the recording holds no rounds.")

    def call(seed: int, round: int, held: Assignment) -> Call:
        if round > len(recorded) and not repeat:
            raise CounterpoiseError(
                f"availability replay: {len(recorded)} rounds were recorded, but this is round {round}. "
                "Run fewer rounds, or say repeat=True."
            )
        return recorded[(round - 1) % len(recorded)]

    return Availability(call, lambda held: max(1, max(len(one.asked) for one in recorded)))


def _lines(path: Path) -> list[Any]:
    if path.is_dir():
        path /= "clients.jsonl"
    try:
        if path.suffix == ".jsonl":
            lines = [parse_json(line, str(path)) for line in read_lines(path)]
            return [line for line in lines if not (isinstance(line, dict) and "cohort" not in line)]  # the head
        found = parse_json(read_text(path, MOST_LINE), str(path))
    except OSError as error:
        raise CounterpoiseError(f"{path} cannot be read: {error.strerror or error}.") from None
    if not isinstance(found, list):
        raise CounterpoiseError(f"{path} must hold a list with one list of client numbers for each round.")
    return found


def _read_round(one: Any, where: object) -> Call:
    """A round, from a list of clients or from a run's record of it."""
    place = f" in {where}" if isinstance(where, str) else ""
    dropped: list[int] = []
    try:
        if isinstance(one, dict):
            gone = (DROPPED, SILENT, AWAY, FAILED)
            dropped = [int(client) for client, reason in one.get("excluded", {}).items() if reason in gone]
            one = one["cohort"]
        if not isinstance(one, list | tuple) or not all(type(client) is int for client in one):
            raise TypeError
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CounterpoiseError(
            f"availability replay: each round{place} must be a list of client numbers, not {str(one)[:60]}."
        ) from None
    return Call(tuple(one), tuple(dropped))
