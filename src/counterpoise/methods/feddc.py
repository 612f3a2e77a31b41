"""FedDC: each client learns how far it drifts, and the server corrects for it.

Gao, Fu, Li, Chen, Xu, Xu: FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and
Correction, CVPR 2022, eq. 3-6 and Algorithm 1.

The paper and its released code differ in the variate; both are here, and docs/methods/baselines.md says what each does.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Client, Method, Part, Reply, Round, Step, World
from counterpoise.methods.registry import METHODS
from counterpoise.parts import mean, mean_gradient, shares, uniform
from counterpoise.parts.updating import need_combined
from counterpoise.registry import Option, Paper

__all__ = ["feddc"]

PAPER = Paper(
    "FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction",
    "Gao et al.",
    2022,
    "arXiv:2203.11751",
)

Variate = Literal["code", "paper"]


@METHODS.register("feddc", group="drift", paper=PAPER)
def feddc(
    alpha: Annotated[float, Option("strength of the pull towards the server's model less the drift", above=0)] = 0.1,
    variate: Annotated[
        Variate,
        Option("a client's variate: corrected by the last ones, as in the released code, or as the paper prints it"),
    ] = "code",
) -> Method:
    """Each client learns its drift and the server corrects for it, with SCAFFOLD's variates.

    Local steps along ``g - c_i + c + alpha (w - w_t + h_i)`` (eq. 3-5), ``h_i <- h_i + d_i``,
    ``w <- w + mean_S d_i + (1/N) sum_j h_j`` (eq. 6).
    """
    return Method("feddc", weigh=(uniform(),), combine=(mean(),), update=(drift_correction(alpha, variate),))


def drift_correction(alpha: float, variate: Variate) -> Part:
    """Clients keep drifts h_i and variates c_i; the server keeps their means over the population.

    The released code has ``c_i <- c_i - c + (w_t - w_i)/(K eta)``, like SCAFFOLD; the paper's eq. 5 uses the last
    round's ``(w_t - w_i)/(K eta)`` itself.
    """

    def gradient(client: Client, step: Step, g: Tensor) -> Tensor:
        drift = step.w - client.start + client.state["h"]
        return g - client.state["c"] + client.broadcast["c"] + alpha * drift

    def finish(client: Client, reply: Reply) -> Reply:
        own, new = client.state["c"], mean_gradient(client, reply)
        if variate == "code":
            new = own - client.broadcast["c"] + new
        return Reply(reply.update, {"change": new - own}, {"c": new, "h": client.state["h"] + reply.trained})

    def apply(round: Round) -> Round:
        combined = need_combined(round)
        seen = len(round.cohort) / round.world.population
        c = round.state["c"] + seen * (shares(round) @ round.reports["change"])
        h = round.state["h"] + seen * combined
        return round.but(model=round.model + combined + h, state={"c": c, "h": h})

    def check(world: World) -> None:
        if world.local.optimizer.reach is None:
            raise CounterpoiseError("FedDC needs a local optimiser that is linear in the gradients, such as sgd.")

    def both(start: Tensor) -> dict[str, Tensor]:
        return {"c": torch.zeros_like(start), "h": torch.zeros_like(start)}

    return Part(
        "drift-correction",
        server_state=both,
        client_state=both,
        when_lost="its drift and its variate start at zero again",
        gradient=gradient,
        finish=finish,
        broadcast=lambda state: {"c": state["c"]},
        apply=apply,
        check=check,
    )
