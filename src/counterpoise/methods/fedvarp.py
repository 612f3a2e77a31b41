"""FedVARP and ClusterFedVARP: the noise of sampling clients taken out on the server.

Jhunjhunwala, Sharma, Nagarkatti, Joshi: FedVARP: Tackling the Variance Due to Partial Client
Participation in Federated Learning, UAI 2022, Algorithms 1 and 2.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from counterpoise.method import Method, Part, Round
from counterpoise.methods.registry import METHODS
from counterpoise.parts import server_step, uniform
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

    ``w <- w + lr ((1/|S|) sum_S (d_i - y_i) + (1/N) sum_j y_j)``, then ``y_i = d_i`` for the cohort (Algorithm 1).
    """
    return Method("fedvarp", weigh=(uniform(),), combine=(varied_mean(),), update=(server_step(lr),))


@METHODS.register("clusterfedvarp", group="variance", paper=PAPER)
def clusterfedvarp(
    clusters: Annotated[
        int, Option("clusters, each with one remembered update; client i is in cluster i mod clusters", low=1)
    ] = 10,
    lr: Lr = 1.0,
) -> Method:
    """FedVARP with one remembered update per cluster of clients, not per client.

    ``w <- w + lr ((1/|S|) sum_S (d_i - y_c(i)) + sum_k (N_k/N) y_k)``, then ``y_k`` is the mean of the cohort's
    ``d_i`` in cluster k, or stays (Algorithm 2). One cluster is FedAvg's plain mean.
    """
    return Method("clusterfedvarp", weigh=(uniform(),), combine=(clustered_mean(clusters),), update=(server_step(lr),))


def varied_mean() -> Part:
    """``(1/|S|) sum_S (d_i - y_i) + (1/N) sum_j y_j``; y is zero for a client not yet seen."""

    def one(start: Tensor) -> dict[str, Tensor]:
        return {"y": torch.zeros_like(start)}

    def apply(round: Round) -> Round:
        fresh = round.cohort.updates - round.records["y"]
        total = round.state["y"] + fresh.sum(0) / round.world.population
        return round.but(
            combined=fresh.mean(0) + round.state["y"], state={"y": total}, records={"y": round.cohort.updates}
        )

    return Part("varied-mean", server_state=one, client_record=one, apply=apply)


def clustered_mean(clusters: int) -> Part:
    """``(1/|S|) sum_S (d_i - y_c(i)) + sum_k (N_k/N) y_k``.

    A server does not know whom it will meet, so ``N_k/N`` is counted over the clients seen so far.
    """

    def server_state(start: Tensor) -> dict[str, Tensor]:
        return {"y": start.new_zeros(clusters, len(start)), "sizes": start.new_zeros(clusters)}

    def apply(round: Round) -> Round:
        y, updates, seen = round.state["y"], round.cohort.updates, round.records["seen"]
        owner = torch.tensor([client % clusters for client in round.cohort.ids], device=y.device)
        members = (owner == torch.arange(clusters, device=y.device)[:, None]).to(y.dtype)
        sizes = round.state["sizes"] + members @ (1 - seen)
        combined = (updates - y[owner]).mean(0) + (sizes / sizes.sum()) @ y
        heard = members.sum(1, keepdim=True)
        new = torch.where(heard > 0, members @ updates / heard.clamp(min=1), y)
        return round.but(combined=combined, state={"y": new, "sizes": sizes}, records={"seen": torch.ones_like(seen)})

    return Part(
        "clustered-mean",
        server_state=server_state,
        client_record=lambda start: {"seen": start.new_zeros(())},
        apply=apply,
    )
