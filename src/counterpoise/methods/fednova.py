"""FedNova: clients' updates divided by how far their local optimiser carries them.

Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization, NeurIPS 2020, eq. 5-8 and sec. 4.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Method, Part, Round, World
from counterpoise.methods.registry import METHODS
from counterpoise.parts import by_data, proximal, server_step
from counterpoise.parts.weighing import need_weights
from counterpoise.registry import Option, Paper

__all__ = ["fednova"]

PAPER = Paper(
    "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
    "Wang et al.",
    2020,
    "arXiv:2007.07481",
)


@METHODS.register("fednova", group="drift", paper=PAPER)
def fednova(
    mu: Annotated[float, Option("strength of the clients' proximal term; 0 turns it off", low=0)] = 0.0,
    lr: Annotated[float, Option("server learning rate", above=0)] = 1.0,
) -> Method:
    """Updates normalised per local step, so that more steps do not mean more weight.

    ``w <- w + lr tau sum_i p_i d_i / |a_i|_1``, ``tau = sum_i p_i |a_i|_1``, ``p_i = n_i/n`` (eq. 6, 7).
    """
    return Method(
        "fednova",
        local=(proximal(mu),) if mu else (),
        weigh=(by_data(),),
        combine=(normalised_mean(mu),),
        update=(server_step(lr),),
    )


def normalised_mean(mu: float) -> Part:
    """``tau sum_i p_i d_i / |a_i|_1`` (eq. 6).

    ``|a_i|_1`` follows from the optimiser and the number of steps K (sec. 4). It is K for plain SGD,
    ``(K - m (1 - m^K)/(1 - m))/(1 - m)`` for momentum m, ``(1 - (1 - eta mu)^K)/(eta mu)`` with a proximal term.

    K is the number of steps that the server asked for: a client that could report its own would scale the whole round,
    or itself. A client that stopped early counts as if it had not. With local epochs, K follows from the count that the
    client claims. A false claim hardly changes the direction of the server's step, as it is in p_i and in K alike, but
    its length ``tau sum_i p_i / |a_i|_1``. So clients whose ``|a_i|_1`` is over `Limits.norm_ratio` times the cohort's
    median do not count in the length.
    """

    def reaches(world: World, steps: Tensor) -> Tensor:
        if mu:
            pull = mu * world.local.lr(world.round)
            return (1 - (1 - pull) ** steps) / pull
        assert world.local.optimizer.reach is not None
        return world.local.optimizer.reach(steps)

    def apply(round: Round) -> Round:
        weights = need_weights(round, "FedNova's mean")
        asked = round.world.local.asked(round.cohort.ids, round.cohort.examples)
        reach = reaches(round.world, asked.to(weights.dtype))
        credible = torch.where(round.bounded(reach) == reach, weights, 0)
        credible = credible / credible.sum()
        tau = (credible * reach).sum()
        each = weights / reach
        factors = tau * (credible / reach).sum() * each / each.sum()
        combined = factors.to(round.model.dtype) @ round.cohort.updates
        return round.noting(normaliser=reach).but(weights=factors, combined=combined)

    def check(world: World) -> None:
        optimizer = world.local.optimizer
        if optimizer.reach is None:
            raise CounterpoiseError(
                "FedNova needs a local optimiser that is linear in the gradients, such as sgd with or without momentum."
            )
        two = torch.tensor(2.0)
        if mu and bool(optimizer.reach(two) != two):
            raise CounterpoiseError("FedNova's proximal form is for plain sgd: set the momentum to 0, or mu to 0.")
        if mu * world.local.lr(1) > 1:
            raise CounterpoiseError(
                f"FedNova's mu is {mu:g} and the local learning rate {world.local.lr(1):g}; their product must not be "
                "above 1, or a step goes past the server's model. Lower one of them."
            )

    return Part("normalised-mean", apply=apply, check=check)
