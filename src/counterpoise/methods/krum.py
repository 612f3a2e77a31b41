"""Krum, Multi-Krum and Bulyan: updates chosen for having close neighbours.

Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent, NIPS 2017, sec. 4 and 5. El Mhamdi, Guerraoui, Rouault: The Hidden Vulnerability of
Distributed Learning in Byzantium, ICML 2018, sec. 4 (Bulyan).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Method, Part, Round, World
from counterpoise.methods.registry import METHODS
from counterpoise.parts import by_columns, server_step, square_distances
from counterpoise.parts.weighing import refuse_weights
from counterpoise.registry import Option, Paper

__all__ = ["bulyan", "krum", "multi_krum"]

KRUM = Paper(
    "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
    "Blanchard, El Mhamdi, Guerraoui, Stainer",
    2017,
    "arXiv:1703.02757",
)
BULYAN = Paper(
    "The Hidden Vulnerability of Distributed Learning in Byzantium",
    "El Mhamdi, Guerraoui, Rouault",
    2018,
    "arXiv:1802.07927",
)

Faulty = Annotated[
    int | None, Option("f, how many clients of a round may be faulty; by default as many as it tolerates", low=0)
]
Lr = Annotated[float, Option("server learning rate", above=0)]
Rule = Callable[[Round, int], Round]


@METHODS.register("krum", group="robustness", paper=KRUM)
def krum(faulty: Faulty = None, lr: Lr = 1.0) -> Method:
    """The one update whose neighbours are closest.

    It has the least sum of squared distances to its ``n - f - 2`` nearest neighbours (sec. 4). Needs ``n >= 2 f + 3``.
    """

    def choose(round: Round, f: int) -> Round:
        return _average(round, scores(square_distances(round.cohort.updates), f).argsort(stable=True)[:1])

    return Method("krum", combine=(bounded("krum", choose, faulty, 2),), update=(server_step(lr),))


@METHODS.register("multi-krum", group="robustness", paper=KRUM)
def multi_krum(
    faulty: Faulty = None,
    keep: Annotated[
        int | None, Option("how many updates are averaged; by default, and at most, n - f - 2", low=1)
    ] = None,
    lr: Lr = 1.0,
) -> Method:
    """The mean of the updates whose neighbours are closest.

    Averages the ``keep`` best by Krum's score (sec. 5). Needs ``n >= 2 f + 3``. The paper leaves their number open.
    Later proofs by its authors need at most ``n - f - 2``, as many as a score counts; a smaller cohort keeps fewer.
    """

    def choose(round: Round, f: int) -> Round:
        best = scores(square_distances(round.cohort.updates), f).argsort(stable=True)
        most = len(best) - f - 2
        return _average(round, best[: min(keep or most, most)])

    part = bounded("multi-krum", choose, faulty, 2, keep or 1)
    return Method("multi-krum", combine=(part,), update=(server_step(lr),))


@METHODS.register("bulyan", group="robustness", paper=BULYAN)
def bulyan(faulty: Faulty = None, lr: Lr = 1.0) -> Method:
    """Repeated Krum, then the mean of the values nearest to the median of each coordinate.

    Krum takes ``n - 2f`` updates one after the other. In each coordinate, the ``n - 4f`` values nearest to their median
    are averaged (sec. 4). Needs ``n >= 4 f + 3``.
    """

    def choose(round: Round, f: int) -> Round:
        chosen = repeated_krum(square_distances(round.cohort.updates), f)
        count = len(chosen) - 2 * f

        def nearest(columns: Tensor) -> Tensor:
            ordered = columns.sort(dim=0).values
            middle = (ordered[(len(chosen) - 1) // 2] + ordered[len(chosen) // 2]) / 2
            places = (columns - middle).abs().argsort(dim=0, stable=True)[:count]
            return columns.gather(0, places).mean(0)

        updates = round.cohort.updates[chosen.to(round.model.device)]
        return round.but(weights=None, combined=by_columns(nearest, updates))

    return Method("bulyan", combine=(bounded("bulyan", choose, faulty, 4),), update=(server_step(lr),))


def bounded(name: str, rule: Rule, faulty: int | None, factor: int, keep: int = 1) -> Part:
    """A rule that needs ``n >= factor f + 3`` clients: a smaller cohort is refused, a smaller round is skipped.

    A rule that should keep more than ``n - f - 2`` of them is refused too.
    """

    def least() -> int:
        return factor * (faulty or 0) + 3

    def bears(count: int) -> int:
        return (count - 3) // factor if faulty is None else faulty

    def apply(round: Round) -> Round:
        count = len(round.cohort)
        if count < least():
            return round.skip(
                f"{name} needs {least()} clients to tolerate {faulty or 0} faulty ones, but only {count} were heard"
            )
        refuse_weights(round, name)
        return rule(round, bears(count))

    def check(world: World) -> None:
        if world.cohort < least():
            raise CounterpoiseError(
                f"method {name} needs at least {least()} clients a round to tolerate {faulty or 0} faulty ones, but "
                f"the cohort is {world.cohort}. Ask for a larger cohort"
                + (", or lower the option faulty." if faulty else ".")
            )
        most = world.cohort - bears(world.cohort) - 2
        if keep > most:
            raise CounterpoiseError(
                f"method {name} can keep at most {most} of {world.cohort} clients a round if {bears(world.cohort)} may "
                f"be faulty, but the option keep is {keep}. Lower keep, or lower the option faulty."
            )

    return Part(name, apply=apply, check=check)


def scores(squares: Tensor, f: int) -> Tensor:
    """Krum's score: the sum of the squared distances to the nearest others."""
    return squares.sort(dim=1).values[:, 1 : neighbours(len(squares), f) + 1].sum(1)  # the nearest is the client itself


def neighbours(count: int, f: int) -> int:
    """How many others a score counts: ``n - f - 2``, at least one."""
    return max(count - f - 2, 1)


def repeated_krum(squares: Tensor, f: int) -> Tensor:
    """The indices of ``n - 2f`` clients: each time, the best by Krum among those left."""
    ordered, whose = squares.sort(dim=1)  # sorted once: the clients left stay in order
    left, chosen = torch.ones(len(squares), dtype=torch.bool), []
    for count in range(len(squares), 2 * f, -1):
        there = left[whose]
        near = there & (there.cumsum(1) <= neighbours(count, f) + 1)
        best = left.nonzero()[torch.where(near, ordered, 0).sum(1)[left].argmin(), 0]
        left[best] = False
        chosen.append(best)
    return torch.stack(chosen)


def _average(round: Round, places: Tensor) -> Round:
    """The mean of some clients' updates."""
    weights = torch.zeros_like(round.cohort.examples)
    weights[places.to(weights.device)] = 1 / len(places)
    return round.but(weights=weights, combined=weights.to(round.model.dtype) @ round.cohort.updates)
