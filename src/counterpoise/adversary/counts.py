"""Clients that want more weight than their data give them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from counterpoise.adversary.base import ADVERSARIES, Adversary, ARound, Clients, First, Fraction, Last, Often
from counterpoise.federation.assignment import Assignment
from counterpoise.federation.federation import Federation
from counterpoise.method import Cohort
from counterpoise.registry import Option

__all__ = [
    "claims",
    "forged_branch",
    "forged_factor",
    "forged_gradient",
    "repeated_data",
    "scaled_update",
    "silent_claim",
]

Factor = Annotated[float, Option("claimed data count, as a multiple of the true one", above=0)]


@ADVERSARIES.register("claims")
def claims(
    factor: Factor = 3.0,
    clients: Clients = None,
    fraction: Fraction = None,
    often: Often = 1.0,
    a_round: ARound = None,
    first: First = 1,
    last: Last = None,
) -> Adversary:
    """Claims a multiple of its data count, and is otherwise honest."""
    # A factor of 1 is the truth: nobody acts, and nobody is recorded as a liar.
    often = often if factor != 1 else 0.0
    return Adversary(clients, fraction, often, _liar(factor), a_round=a_round, first=first, last=last)


@ADVERSARIES.register("forged-factor")
def forged_factor(
    factor: Factor = 3.0, clients: Clients = None, fraction: Fraction = None, often: Often = 1.0
) -> Adversary:
    """Claims a multiple, and reports factors alpha to FedDua that fit the claim."""
    return Adversary(clients, fraction, often, _liar(factor, alphas=1 / factor))


@ADVERSARIES.register("forged-gradient")
def forged_gradient(
    factor: Factor = 3.0,
    clients: Clients = None,
    fraction: Fraction = None,
    often: Often = 1.0,
    gradient: Annotated[
        float | None,
        Option("reported gradient norm, as a multiple of the true one; by default to fit the claim", low=0),
    ] = None,
) -> Adversary:
    """Claims a multiple, and reports a gradient to FedDua that is short enough to fit the claim."""
    return Adversary(clients, fraction, often, _liar(factor, gradient=1 / factor if gradient is None else gradient))


@ADVERSARIES.register("forged-branch")
def forged_branch(
    factor: Factor = 3.0,
    clients: Clients = None,
    fraction: Fraction = None,
    often: Often = 1.0,
    branch: Annotated[float, Option("sent branch weights, as a multiple of the true ones")] = 1000.0,
) -> Adversary:
    """Claims a multiple, and sends FedDua a branch that would spoil everybody's factors."""
    return Adversary(clients, fraction, often, _liar(factor, branch=branch))


@ADVERSARIES.register("scaled-update")
def scaled_update(
    factor: Factor = 3.0, clients: Clients = None, fraction: Fraction = None, often: Often = 1.0
) -> Adversary:
    """Claims a multiple, and lengthens its update by the same factor to fit the claim."""
    return Adversary(clients, fraction, often, _liar(factor, update=factor))


@ADVERSARIES.register("silent-claim")
def silent_claim(
    factor: Factor = 3.0, clients: Clients = None, fraction: Fraction = None, often: Often = 1.0
) -> Adversary:
    """Claims a multiple, sends an update of zeros and reports a gradient of zero."""
    return Adversary(clients, fraction, often, _liar(factor, update=0.0, gradient=0.0))


@ADVERSARIES.register("repeated-data")
def repeated_data(
    times: Annotated[int, Option("how many copies of each sample it holds", low=1)] = 3,
    clients: Clients = None,
    fraction: Fraction = None,
) -> Adversary:
    """Trains on several copies of its data as if they were more data, and claims them all."""

    def data(federation: Federation, liars: Tensor) -> Federation:
        return replace(federation, train=Repeated(federation.train, liars, times))

    return Adversary(clients, fraction, data=data)


@dataclass(frozen=True)
class Repeated:
    """Some clients hold each of their rows several times."""

    inner: Assignment
    liars: Tensor
    times: int

    @property
    def clients(self) -> int:
        return self.inner.clients

    def sizes(self, ids: Tensor) -> Tensor:
        return self.inner.sizes(ids) * torch.where(torch.isin(ids, self.liars), self.times, 1)

    def rows(self, ids: Tensor) -> Tensor:
        rows, sizes = self.inner.rows(ids), self.inner.sizes(ids)
        longest = self.sizes(ids)
        places = torch.arange(int(longest.max()) if len(ids) else 0)
        again = rows.gather(1, places % sizes.clamp(min=1)[:, None]) if len(places) else rows[:, :0]
        return torch.where(places < longest[:, None], again, 0)

    def split(self, fraction: float, seed: int) -> tuple[Assignment, Assignment]:
        kept, held = self.inner.split(fraction, seed)
        return replace(self, inner=kept), held


def _liar(factor: float, update: float = 1.0, **reports: float) -> Callable[[Cohort, Tensor], Cohort]:
    """Multiplies a liar's count by `factor`, its update by `update`, and the named reports of any part by theirs.

    Another report as long as the model, such as SCAFFOLD's change of a variate, is multiplied as the update is.
    """

    def reply(cohort: Cohort, acting: Tensor) -> Cohort:
        def forged(true: Tensor, by: float) -> Tensor:
            return true if by == 1 else torch.where(acting.view(-1, *(1,) * (true.ndim - 1)), by * true, true)

        def factor_of(name: str, true: Tensor) -> float:
            return reports.get(name, update if true.shape == cohort.updates.shape else 1.0)

        told = {
            part: {name: forged(true, factor_of(name, true)) for name, true in named.items()}
            for part, named in cohort.reports.items()
        }
        claimed = torch.where(acting, (factor * cohort.examples).round().clamp(min=1), cohort.examples)
        return replace(cohort, updates=forged(cohort.updates, update), examples=claimed, reports=told)

    return reply
