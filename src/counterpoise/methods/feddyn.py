"""FedDyn: each client's objective is changed so that all clients' optima agree with the server's.

Acar, Zhao, Matas, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization,
ICLR 2021, eq. 1 and Algorithm 1.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from counterpoise.method import Client, Method, Part, Reply, Round, Step
from counterpoise.methods.registry import METHODS
from counterpoise.parts import mean, uniform
from counterpoise.parts.updating import need_combined
from counterpoise.registry import Option, Paper

__all__ = ["feddyn"]

PAPER = Paper("Federated Learning Based on Dynamic Regularization", "Acar et al.", 2021, "arXiv:2111.04263")

Score = Literal["server", "mean"]


@METHODS.register("feddyn", group="drift", paper=PAPER)
def feddyn(
    alpha: Annotated[float, Option("strength of the regulariser", above=0)] = 0.1,
    score: Annotated[
        Score,
        Option(
            "the model that is measured and handed out: the server's, or the mean of the clients' as in the authors' code"
        ),
    ] = "server",
) -> Method:
    """A regulariser that makes the clients' optima agree with the server's.

    Clients minimise ``F_i(w) - <g_i, w> + alpha/2 |w - w_t|^2`` (eq. 1), then ``g_i <- g_i - alpha d_i``. The server:
    ``h <- h - alpha (1/N) sum_S d_i``, ``w <- w + mean_S d_i - h/alpha`` (Algorithm 1). The mean of the clients' models
    is ``w + h/alpha``.
    """
    return Method("feddyn", weigh=(uniform(),), combine=(mean(),), update=(dynamic_regulariser(alpha, score),))


def dynamic_regulariser(alpha: float, score: Score = "server") -> Part:
    """``g_i`` on each client, h on the server; both start at zero, as in Algorithm 1."""

    def gradient(client: Client, step: Step, g: Tensor) -> Tensor:
        return g - client.state["g"] + alpha * (step.w - client.start)

    def finish(client: Client, reply: Reply) -> Reply:
        return Reply(reply.update, {}, {"g": client.state["g"] - alpha * reply.trained})

    def apply(round: Round) -> Round:
        combined = need_combined(round)
        h = round.state["h"] - alpha * len(round.cohort) / round.world.population * combined
        return round.but(model=round.model + combined - h / alpha, state={"h": h})

    return Part(
        "dynamic-regulariser",
        server_state=lambda start: {"h": torch.zeros_like(start)},
        client_state=lambda start: {"g": torch.zeros_like(start)},
        when_lost="its gradient starts at zero again",
        gradient=gradient,
        finish=finish,
        scored=(lambda model, state: model + state["h"] / alpha) if score == "mean" else None,
        apply=apply,
    )
