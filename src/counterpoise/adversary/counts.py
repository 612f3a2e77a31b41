"""Clients that want more weight than their data give them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from counterpoise.adversary.base import ADVERSARIES, Adversary, ARound, Clients, Fraction, Often
from counterpoise.federation.assignment import Assignment
from counterpoise.federation.federation import Federation
from counterpoise.method import Cohort
from counterpoise.registry import Option

__all__ = ["claims", "forged_factor", "forged_gradient", "repeated_data", "scaled_update"]

Factor = Annotated[float, Option("how many times its count a client claims", above=0)]


@ADVERSARIES.register("claims")
def claims(
    factor: Factor = 3.0,
    clients: Clients = 1,
    fraction: Fraction = None,
    often: Often = 1.0,
    a_round: ARound = None,
) -> Adversary:
    """Claims a multiple of its data count, and is honest otherwise."""

    def reply(cohort: Cohort, acting: Tensor) -> Cohort:
        return _claiming(cohort, acting, factor)

    return Adversary(clients, fraction, often, reply, a_round=a_round)


@ADVERSARIES.register("forged-factor")
def forged_factor(
    factor: Factor = 3.0, clients: Clients = 1, fraction: Fraction = None, often: Often = 1.0
) -> Adversary:
    """Claims a multiple, and reports to FedDua the factors alpha that belong to it."""

    def reply(cohort: Cohort, acting: Tensor) -> Cohort:
        return _claiming(_reporting(cohort, acting, "alphas", 1 / factor), acting, factor)

    return Adversary(clients, fraction, often, reply)


@ADVERSARIES.register("forged-gradient")
def forged_gradient(
    factor: Factor = 3.0, clients: Clients = 1, fraction: Fraction = None, often: Often = 1.0
) -> Adversary:
    """Claims a multiple, and reports to FedDua so short a gradient that the claim fits."""

    def reply(cohort: Cohort, acting: Tensor) -> Cohort:
        return _claiming(_reporting(cohort, acting, "gradient", 1 / factor), acting, factor)

    return Adversary(clients, fraction, often, reply)


@ADVERSARIES.register("scaled-update")
def scaled_update(
    factor: Factor = 3.0, clients: Clients = 1, fraction: Fraction = None, often: Often = 1.0
) -> Adversary:
    """Claims a multiple, and makes its update as many times longer so that the claim fits."""

    def reply(cohort: Cohort, acting: Tensor) -> Cohort:
        longer = torch.where(acting[:, None], factor * cohort.updates, cohort.updates)
        return _claiming(replace(cohort, updates=longer), acting, factor)

    return Adversary(clients, fraction, often, reply)


@ADVERSARIES.register("repeated-data")
def repeated_data(
    times: Annotated[int, Option("how often it holds each sample", low=1)] = 3,
    clients: Clients = 1,
    fraction: Fraction = None,
) -> Adversary:
    """Trains on its data several times over as if they were more, and claims as many."""

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


def _claiming(cohort: Cohort, acting: Tensor, factor: float) -> Cohort:
    claimed = (cohort.examples * factor).round().clamp(min=1)
    return replace(cohort, examples=torch.where(acting.to(claimed.device), claimed, cohort.examples))


def _reporting(cohort: Cohort, acting: Tensor, name: str, factor: float) -> Cohort:
    """Reports of this name, of whatever part, multiplied."""
    reports = {
        part: {
            k: torch.where(acting.view(-1, *(1,) * (v.ndim - 1)), factor * v, v) if k == name else v
            for k, v in named.items()
        }
        for part, named in cohort.reports.items()
    }
    return replace(cohort, reports=reports)
