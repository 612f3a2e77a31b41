"""q-FFL: clients with a high loss count more.

Li, Sanjabi, Beirami, Smith: Fair Resource Allocation in Federated Learning, ICLR 2020, eq. 2 and
Algorithm 2 (q-FedAvg).
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from counterpoise.method import Client, Method, Part, Reply, Round, Step
from counterpoise.methods.registry import METHODS
from counterpoise.parts import server_step
from counterpoise.parts.weighing import refuse_weights
from counterpoise.registry import Option, Paper

__all__ = ["qffl"]

PAPER = Paper("Fair Resource Allocation in Federated Learning", "Li, Sanjabi, Beirami, Smith", 2020, "arXiv:1905.10497")

_LEAST = 1e-10
"""Added to a loss, so that a loss of zero does not divide by zero."""


@METHODS.register("qffl", group="weighting", paper=PAPER)
def qffl(
    q: Annotated[float, Option("how much a high loss counts; 0 is the plain mean", low=0)] = 1.0,
    lr: Annotated[float, Option("server learning rate", above=0)] = 1.0,
) -> Method:
    """Clients with a high loss count more, for a fairer model.

    ``w <- w + lr sum_i F_i^q L d_i / sum_i (q F_i^(q-1) |L d_i|^2 + L F_i^q)``, with F_i the client's loss at the
    server's model and ``L = 1/eta`` (Algorithm 2). A negative loss counts as 0, and a loss is capped at
    `Limits.norm_ratio` times the cohort's median.
    """
    return Method("qffl", combine=(fair_mean(q),), update=(server_step(lr),))


def fair_mean(q: float) -> Part:
    """Each client's loss at the server's model, from a pass over its data, and the resulting step."""

    def begin(client: Client) -> dict[str, Tensor]:
        return {"loss": client.start.new_zeros(())}

    def survey(client: Client, step: Step) -> dict[str, Tensor]:
        return {"loss": client.memo["loss"] + step.examples / client.examples * step.loss_at(client.start)}

    def finish(client: Client, reply: Reply) -> Reply:
        return Reply(reply.update, {"loss": client.memo["loss"]})

    def apply(round: Round) -> Round:
        refuse_weights(round, "fair-mean")
        reported = round.reports["loss"].double().clamp(min=0)
        losses = round.bounded(reported) + _LEAST
        lipschitz = 1 / round.world.local.lr(round.world.round)
        gradients = lipschitz * round.cohort.updates.double().norm(dim=1)
        factors = losses**q
        curvature = q * losses ** (q - 1) * gradients.square() + lipschitz * factors
        step = lipschitz * factors / curvature.sum()
        noted = round.noting(loss_before=reported)
        return noted.but(weights=step, combined=step.to(round.model.dtype) @ round.cohort.updates)

    return Part("fair-mean", begin=begin, survey=survey, finish=finish, apply=apply)
