"""AdaBest: client and server biases estimated from how models move, with a memory that fades.

Varno, Saghayi, Rafiee Sevyeri, Gupta, Matwin, Havaei: AdaBest: Minimizing Client Drift in Federated
Learning via Adaptive Bias Estimation, ECCV 2022, Algorithm 1.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from counterpoise.method import Client, Method, Part, Reply, Round, Step
from counterpoise.methods.registry import METHODS
from counterpoise.parts import mean, uniform
from counterpoise.parts.updating import need_combined
from counterpoise.registry import Option, Paper

__all__ = ["adabest"]

PAPER = Paper(
    "AdaBest: Minimizing Client Drift in Federated Learning via Adaptive Bias Estimation",
    "Varno et al.",
    2022,
    "arXiv:2204.13170",
)


@METHODS.register("adabest", group="drift", paper=PAPER)
def adabest(
    mu: Annotated[float, Option("how much of its last move a client adds to its bias", low=0)] = 0.02,
    beta: Annotated[float, Option("how far the server continues along the mean model's move", low=0, below=1)] = 0.8,
) -> Method:
    """Bias estimates on clients and server that fade with absence.

    Local steps along ``g - h_i``, ``h_i <- h_i/(t - t_i) + mu (w_t - w_i)`` with t_i the client's last round;
    ``w <- m + beta (m - m')``, with m and m' the mean models of this round and the one before (Algorithm 1).
    """
    return Method("adabest", weigh=(uniform(),), combine=(mean(),), update=(bias_estimates(mu, beta),))


def bias_estimates(mu: float, beta: float) -> Part:
    """Clients keep ``h_i`` and their last round; the server keeps the last mean model, at first the initial one."""

    def gradient(client: Client, step: Step, g: Tensor) -> Tensor:
        return g - client.state["h"]

    def finish(client: Client, reply: Reply) -> Reply:
        now = client.broadcast["round"]
        absent = now - client.state["last"]  # at least 1: a round that the server skips counts for no client
        return Reply(reply.update, {}, {"h": client.state["h"] / absent - mu * reply.trained, "last": now})

    def apply(round: Round) -> Round:
        combined = need_combined(round)
        middle = round.model + combined
        model = middle + beta * (middle - round.state["middle"])
        return round.but(model=model, state={"middle": middle, "round": round.state["round"] + 1})

    return Part(
        "bias-estimates",
        server_state=lambda start: {"middle": start.clone(), "round": start.new_ones(())},
        client_state=lambda start: {"h": torch.zeros_like(start), "last": start.new_zeros(())},
        when_lost="its bias starts at zero again",
        gradient=gradient,
        finish=finish,
        broadcast=lambda state: {"round": state["round"]},
        apply=apply,
    )
