"""FedVARP and ClusterFedVARP: the server removes the noise of sampling clients.

Jhunjhunwala, Sharma, Nagarkatti, Joshi: FedVARP: Tackling the Variance Due to Partial Client
Participation in Federated Learning, UAI 2022, Algorithms 1 and 2.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from counterpoise.method import Method, Part, Round
from counterpoise.methods.registry import METHODS
from counterpoise.parts import server_step
from counterpoise.parts.weighing import equal, refuse_weights
from counterpoise.registry import Option, Paper

__all__ = ["clusterfedvarp", "fedvarp"]

PAPER = Paper(
    "FedVARP: Tackling the Variance Due to Partial Client Participation in Federated Learning",
    "Jhunjhunwala, Sharma, Nagarkatti, Joshi",
    2022,
    "arXiv:2207.14130",
)

Lr = Annotated[float, Option("server learning rate", above=0)]


@METHODS.register("fedvarp", group="variance", paper=PAPER)
def fedvarp(lr: Lr = 1.0) -> Method:
    """The cohort's mean, corrected by the last updates of all clients.

    ``w <- w + lr eta ((1/|S|) sum_S (d_i/eta - y_i) + (1/N) sum_j y_j)``, then ``y_i = d_i/eta`` for the cohort,
    with eta the round's learning rate (Algorithm 1).
    """
    return Method("fedvarp", combine=(varied_mean(),), update=(server_step(lr),))


@METHODS.register("clusterfedvarp", group="variance", paper=PAPER)
def clusterfedvarp(
    clusters: Annotated[
        int, Option("clusters, each with one remembered update; client i is in cluster i mod clusters", low=1)
    ] = 10,
    lr: Lr = 1.0,
) -> Method:
    """FedVARP with one remembered update per cluster of clients, not per client.

    ``w <- w + lr eta ((1/|S|) sum_S (d_i/eta - y_c(i)) + sum_k (N_k/N) y_k)``. Then ``y_k`` becomes the mean of the
    cohort's ``d_i/eta`` in cluster k; it stays if there are none (Algorithm 2). One cluster is FedAvg's plain mean.
    """
    return Method("clusterfedvarp", combine=(clustered_mean(clusters),), update=(server_step(lr),))


def varied_mean() -> Part:
    """``eta ((1/|S|) sum_S (d_i/eta - y_i) + (1/N) sum_j y_j)``; y is zero for a client not yet seen."""

    def one(start: Tensor) -> dict[str, Tensor]:
        return {"y": torch.zeros_like(start)}

    def apply(round: Round) -> Round:
        refuse_weights(round, "varied-mean")
        eta, mean = _pace(round), round.state["y"]
        new = round.cohort.updates / eta
        fresh = new - round.records["y"]
        total = mean + fresh.sum(0) / round.world.population
        combined = eta * (fresh.mean(0) + mean)
        return round.but(weights=equal(round), combined=combined, state={"y": total}, records={"y": new})

    return Part("varied-mean", server_state=one, client_record=one, apply=apply)


def clustered_mean(clusters: int) -> Part:
    """``eta ((1/|S|) sum_S (d_i/eta - y_c(i)) + sum_k (N_k/N) y_k)``, with N_k of the N clients in cluster k."""

    def apply(round: Round) -> Round:
        refuse_weights(round, "clustered-mean")
        y, eta, population = round.state["y"], _pace(round), round.world.population
        updates = round.cohort.updates / eta
        owner = torch.tensor([client % clusters for client in round.cohort.ids], device=y.device)
        numbers = torch.arange(clusters, device=y.device)
        sizes = (population + clusters - 1 - numbers) // clusters  # client i is in cluster i mod clusters
        combined = eta * ((updates - y[owner]).mean(0) + sizes.to(y.dtype) @ y / population)
        members = (owner == numbers[:, None]).to(y.dtype)
        heard = members.sum(1, keepdim=True)
        new = torch.where(heard > 0, members @ updates / heard.clamp(min=1), y)
        return round.but(weights=equal(round), combined=combined, state={"y": new})

    return Part("clustered-mean", server_state=lambda start: {"y": start.new_zeros(clusters, len(start))}, apply=apply)


def _pace(round: Round) -> float:
    """The round's learning rate as a multiple of the optimiser's, so that old updates count at the new rate."""
    return round.world.local.schedule.factor(round.world.round)
