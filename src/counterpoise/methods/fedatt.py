"""FedAtt: in each layer, clients are weighed by their distance from the server's model.

Ji, Pan, Long, Li, Jiang, Huang: Learning Private Neural Language Modeling with Attentive Aggregation,
IJCNN 2019, eq. 4-6 and Algorithm 1.
"""

from __future__ import annotations

from typing import Annotated

import torch

from counterpoise.method import Method, Part, Round
from counterpoise.methods.registry import METHODS
from counterpoise.parts import mean, server_step
from counterpoise.registry import Option, Paper

__all__ = ["fedatt"]

PAPER = Paper(
    "Learning Private Neural Language Modeling with Attentive Aggregation", "Ji et al.", 2019, "arXiv:1812.07108"
)


@METHODS.register("fedatt", group="weighting", paper=PAPER)
def fedatt(
    lr: Annotated[float, Option("epsilon, the step size", above=0)] = 1.2,
) -> Method:
    """Weights by distance from the server's model, layer by layer.

    ``a_i^l = softmax_i |d_i^l|``, ``w^l <- w^l + lr sum_i a_i^l d_i^l`` (eq. 4-6). As printed, the client that moved
    furthest counts most.
    """
    return Method("fedatt", weigh=(attention(),), combine=(mean(),), update=(server_step(lr),))


def attention() -> Part:
    """``softmax_i |d_i^l|`` for each layer l: a module's weight and bias together."""

    def apply(round: Round) -> Round:
        sizes = torch.bincount(round.world.layout.layers).tolist()
        layers = torch.split(round.cohort.updates, sizes, dim=1)
        lengths = torch.stack([torch.linalg.vector_norm(layer, dim=1, dtype=torch.float64) for layer in layers], dim=1)
        return round.but(weights=lengths.softmax(0))

    return Part("attention", apply=apply, by_counts=False)
