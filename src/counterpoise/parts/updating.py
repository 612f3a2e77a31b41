"""From the combined update to the server's new model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.local import Schedule
from counterpoise.method import Part, Round

__all__ = ["adaptive", "need_combined", "server_momentum", "server_step"]

SecondMoment = Callable[[Tensor, Tensor], Tensor]
"""``(v, u^2) -> v``"""


def server_step(lr: float = 1.0) -> Part:
    """``w <- w + lr u``, with u the combined update."""

    def apply(round: Round) -> Round:
        combined = need_combined(round)
        return round.but(model=round.model + lr * combined)

    return Part("server-step", apply=apply)


def server_momentum(beta: float, lr: float = 1.0, schedule: Schedule | None = None) -> Part:
    """``v <- beta v + u``, ``w <- w + lr v`` (Hsu, Qi, Brown 2019, sec. 4.3), with lr times the schedule's factor."""

    def server_state(start: Tensor) -> dict[str, Tensor]:
        return {"velocity": torch.zeros_like(start)}

    def apply(round: Round) -> Round:
        combined = need_combined(round)
        velocity = beta * round.state["velocity"] + combined
        rate = lr if schedule is None else lr * schedule.factor(round.world.round)
        return round.but(model=round.model + rate * velocity, state={"velocity": velocity})

    return Part("server-momentum", server_state=server_state, apply=apply)


def adaptive(name: str, moment: SecondMoment, beta1: float, tau: float, lr: float) -> Part:
    """``m <- beta1 m + (1 - beta1) u``, ``v <- moment(v, u^2)``, ``w <- w + lr m/(sqrt(v) + tau)``.

    Reddi et al. 2021, Algorithm 2: no bias correction, and v starts at tau^2, the smallest value it allows.
    """

    def server_state(start: Tensor) -> dict[str, Tensor]:
        return {"m": torch.zeros_like(start), "v": torch.full_like(start, tau**2)}

    def apply(round: Round) -> Round:
        combined = need_combined(round)
        m = beta1 * round.state["m"] + (1 - beta1) * combined
        v = moment(round.state["v"], combined.square())
        return round.but(model=round.model + lr * m / (v.sqrt() + tau), state={"m": m, "v": v})

    return Part(name, server_state=server_state, apply=apply)


def need_combined(round: Round) -> Tensor:
    """The combined update, for a part that makes the new model from it."""
    if round.combined is None:
        raise CounterpoiseError(
            "The server's step needs one update, and no part that acts before it has made one. Put one that does, such "
            "as parts.mean(), into the slot combine; a part of your own there must return round.but(combined=...)."
        )
    return round.combined
