"""MIFA: the server remembers every client's last update, so that absent ones still count.

Gu, Huang, Zhang, Huang: Fast Federated Learning in the Presence of Arbitrary Device Unavailability,
NeurIPS 2021, Algorithm 1.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from counterpoise.method import Method, Part, Round
from counterpoise.methods.registry import METHODS
from counterpoise.parts import server_step
from counterpoise.parts.weighing import refuse_weights
from counterpoise.registry import Option, Paper

__all__ = ["mifa"]

PAPER = Paper(
    "Fast Federated Learning in the Presence of Arbitrary Device Unavailability",
    "Gu, Huang, Zhang, Huang",
    2021,
    "arXiv:2106.04159",
)


@METHODS.register("mifa", group="variance", paper=PAPER)
def mifa(
    lr: Annotated[float, Option("server learning rate", above=0)] = 1.0,
) -> Method:
    """The mean of all clients' last updates, absent ones included.

    ``w <- w - eta_t (1/N) sum_i G_i``, with ``G_i = (w - w_i)/eta`` of the last round client i took part in
    (Algorithm 1). A client not yet seen counts as zero; the paper has all of them take part in round 1.
    """
    return Method("mifa", combine=(remembered_mean(),), update=(server_step(lr),))


def remembered_mean() -> Part:
    """``eta_t (1/N) sum_i y_i``, with ``y_i = d_i/eta`` remembered: an old update counts at the new learning rate."""

    def one(start: Tensor) -> dict[str, Tensor]:
        return {"y": torch.zeros_like(start)}

    def apply(round: Round) -> Round:
        refuse_weights(round, "remembered-mean")
        eta = round.world.local.lr(round.world.round)
        new = round.cohort.updates / eta
        total = round.state["y"] + (new - round.records["y"]).sum(0) / round.world.population
        weights = torch.full_like(round.cohort.examples, 1 / round.world.population)
        return round.but(weights=weights, combined=eta * total, state={"y": total}, records={"y": new})

    return Part("remembered-mean", server_state=one, client_record=one, apply=apply)
