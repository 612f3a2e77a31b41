"""Ditto: a personal model beside the global one, pulled towards it.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021,
eq. (Ditto) and Algorithm 1.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from counterpoise.method import Client, Method, Part, Reply, Step
from counterpoise.methods.fedavg import fedavg
from counterpoise.methods.registry import METHODS
from counterpoise.registry import Option, Paper

__all__ = ["ditto"]

PAPER = Paper(
    "Ditto: Fair and Robust Federated Learning Through Personalization",
    "Li, Hu, Beirami, Smith",
    2021,
    "arXiv:2012.04221",
)


@METHODS.register("ditto", group="personalisation", paper=PAPER)
def ditto(
    strength: Annotated[float, Option("lambda, the pull of a personal model towards the server's", low=0)] = 0.1,
    lr: Annotated[float, Option("server learning rate", above=0)] = 1.0,
) -> Method:
    """FedAvg, plus a personal model on each client that is pulled towards the server's.

    ``v_i <- v_i - eta (grad F_i(v_i) + lambda (v_i - w_t))`` beside each local step (Algorithm 1). If the local
    optimiser is not plain SGD, it takes this step too. The global model is FedAvg's.
    """
    return fedavg(lr).adding("ditto", local=personal_model(strength))


def personal_model(strength: float) -> Part:
    """The personal model takes its own step beside each local step, on the same batch and by the same optimiser."""

    def begin(client: Client) -> dict[str, Tensor]:
        v = torch.where(client.state["seen"] > 0, client.state["v"], client.start)
        return {"v": v} | {f"optimizer {name}": x for name, x in client.local.optimizer.init(v).items()}

    def after_step(client: Client, step: Step) -> dict[str, Tensor]:
        v, local = client.memo["v"], client.local
        state = {name.removeprefix("optimizer "): x for name, x in client.memo.items() if name != "v"}
        g = local.entering(v, step.gradient_at(v) + strength * (v - client.start))
        v, state = local.optimizer.step(v, g, state, client.lr)
        return {"v": v} | {f"optimizer {name}": x for name, x in state.items()}

    def finish(client: Client, reply: Reply) -> Reply:
        return Reply(reply.update, {}, {"v": client.memo["v"], "seen": torch.ones_like(client.state["seen"])})

    return Part(
        "personal-model",
        client_state=lambda start: {"v": start.clone(), "seen": start.new_zeros(())},
        when_lost="its personal model starts from the server's again",
        begin=begin,
        after_step=after_step,
        finish=finish,
        personal=lambda model, state: state["v"],
    )
