"""How the learning rate changes over rounds: a factor for each of them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Literal

from counterpoise.errors import CounterpoiseError, brief, check_call
from counterpoise.registry import Option, Registry, Spec

__all__ = ["SCHEDULES", "Schedule", "constant", "cosine", "exponential", "listed", "stairs"]


@dataclass(frozen=True)
class Schedule:
    """A factor on the learning rate for each round, counted from 1.

    With `by_epoch`, each pass of a round has a factor of its own: pass e of E passes, counted from 0, in round r has
    ``factor(r + e / E)``.
    """

    factor: Callable[[float], float]
    spec: Spec = field(default_factory=Spec)
    by_epoch: bool = False

    def __post_init__(self) -> None:
        check_call(self.factor, "factor(round)", "Schedule")


SCHEDULES: Registry[Schedule] = Registry("schedule", Schedule)


@SCHEDULES.register("constant")
def constant() -> Schedule:
    """The same learning rate in every round."""
    return Schedule(lambda round: 1.0)


@SCHEDULES.register("exponential")
def exponential(
    decay: Annotated[float, Option("factor per round", above=0, high=1)] = 0.99,
) -> Schedule:
    """Multiply by a factor after every round.

    >>> exponential(0.5).factor(3)
    0.25
    """
    return Schedule(lambda round: decay ** (round - 1))


@SCHEDULES.register("stairs")
def stairs(
    every: Annotated[int, Option("rounds between two drops", low=1)],
    decay: Annotated[float, Option("factor per drop", above=0, high=1)] = 0.1,
) -> Schedule:
    """Multiply by a factor after every so many rounds."""
    return Schedule(lambda round: decay ** ((round - 1) // every))


@SCHEDULES.register("cosine")
def cosine(
    rounds: Annotated[int, Option("rounds until the lowest factor", low=1)],
    floor: Annotated[float, Option("lowest factor", low=0, high=1)] = 0.0,
    each: Annotated[Literal["round", "epoch"], Option("whether it falls after every round or every epoch")] = "round",
) -> Schedule:
    """Fall along half a cosine over a number of rounds, then stay."""

    def factor(round: float) -> float:
        done = min((round - 1) / rounds, 1.0)
        return floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2

    return Schedule(factor, by_epoch=each == "epoch")


@SCHEDULES.register("listed")
def listed(
    rounds: Annotated[list, Option("the rounds with a factor of their own, in ascending order")],  # type: ignore[type-arg]
    factors: Annotated[list, Option("their factors, all above 0")],  # type: ignore[type-arg]
    hold: Annotated[bool, Option("whether a factor holds until the next one, or in its own round alone")] = True,
) -> Schedule:
    """Take the factors of some rounds from a list. Other rounds have the one before, or 1.

    >>> [listed([2, 4], [0.1, 0.01]).factor(round) for round in range(1, 6)]
    [1.0, 0.1, 0.1, 0.01, 0.01]
    >>> [listed([2, 4], [0.1, 0.01], hold=False).factor(round) for round in range(1, 6)]
    [1.0, 0.1, 1.0, 0.01, 1.0]
    """
    if any(type(round) is not int for round in rounds) or any(a >= b for a, b in pairwise([0, *rounds])):
        raise CounterpoiseError(
            f"schedule listed: rounds must be whole numbers from 1 in ascending order, not {brief(rounds)}."
        )
    if any(isinstance(f, bool) or not isinstance(f, int | float) or not 0 < f < math.inf for f in factors):
        raise CounterpoiseError(f"schedule listed: factors must be numbers above 0, not {brief(factors)}.")
    if len(rounds) != len(factors):
        raise CounterpoiseError(
            f"schedule listed: there must be one factor for each round, not {len(factors)} for {len(rounds)}."
        )
    own = dict(zip(rounds, map(float, factors), strict=True))
    if not hold:
        return Schedule(lambda round: own.get(round, 1.0))
    return Schedule(lambda round: [1.0, *own.values()][bisect_right(rounds, round)])
