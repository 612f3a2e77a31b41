"""MOON: representations kept near the server's and away from the client's own last ones.

Li, He, Song: Model-Contrastive Federated Learning, CVPR 2021, eq. 3 and Algorithm 1.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Client, Method, Part, Reply, Step, World
from counterpoise.methods.fedavg import fedavg
from counterpoise.methods.registry import METHODS
from counterpoise.registry import Option, Paper

__all__ = ["moon"]

PAPER = Paper("Model-Contrastive Federated Learning", "Li, He, Song", 2021, "arXiv:2103.16257")


@METHODS.register("moon", group="drift", paper=PAPER)
def moon(
    mu: Annotated[float, Option("weight of the contrastive loss; 0 turns it off", low=0)] = 1.0,
    temperature: Annotated[float, Option("temperature of the similarities", above=0)] = 0.5,
    lr: Annotated[float, Option("server learning rate", above=0)] = 1.0,
) -> Method:
    """FedAvg with a loss that keeps representations near the server's.

    Adds ``-mu log(e^(s/tau) / (e^(s/tau) + e^(s'/tau)))``. Here s and s' are the cosines of a sample's representation
    with those from the server's model and from the client's last one (eq. 3). Needs a model with a method ``features``.
    If a text has features at every place, padding does not count.
    """
    return fedavg(lr).adding("moon", **({"local": contrast(mu, temperature)} if mu else {}))


def contrast(mu: float, temperature: float) -> Part:
    """The contrastive loss. In its first round a client has no last model, so there is no contrast."""

    def loss(client: Client, step: Step, w: Tensor) -> Tensor:
        last = torch.where(client.state["seen"] > 0, client.state["w"], client.start)
        z, server, own = (_rows(step.output_at(at, "features"), step.real) for at in (w, client.start, last))
        closer = (_cosine(z, server) - _cosine(z, own)) / temperature
        return mu * step.mean(-F.logsigmoid(closer))

    def finish(client: Client, reply: Reply) -> Reply:
        return Reply(
            reply.update, {}, {"w": client.start + reply.trained, "seen": torch.ones_like(client.state["seen"])}
        )

    def check(world: World) -> None:
        if not world.offers("features"):
            raise CounterpoiseError(
                "MOON compares representations: give the model a method features(inputs) that returns one vector per "
                "sample, like the models of counterpoise.models."
            )

    return Part(
        "contrast",
        client_state=lambda start: {"w": start.clone(), "seen": start.new_zeros(())},
        when_lost="it has no contrast in its next round",
        loss=loss,
        finish=finish,
        check=check,
    )


def _rows(features: Tensor, real: Tensor | None) -> Tensor:
    """A row for each sample. If a text has features at every place, those of its padding are zero."""
    if real is not None and features.ndim > 2 and features.shape[:2] == real.shape:
        features = torch.where(real.view(*real.shape, *(1,) * (features.ndim - 2)), features, 0)
    return features.flatten(1)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosines of rows; 0, with no gradient, if either is zero."""
    square = a.square().sum(1) * b.square().sum(1)
    there = square > 0
    return torch.where(there, (a * b).sum(1) * torch.where(there, square, 1).rsqrt(), 0)
