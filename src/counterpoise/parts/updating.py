"""The combined update to the server's new model."""

from __future__ import annotations

import torch
from torch import Tensor

from counterpoise.method import Part, Round

__all__ = ["server_momentum", "server_step"]


def server_step(lr: float = 1.0) -> Part:
    """``w <- w + lr u``, with u the combined update."""

    def apply(round: Round) -> Round:
        assert round.combined is not None
        return round.but(model=round.model + lr * round.combined)

    return Part("server-step", apply=apply)


def server_momentum(beta: float, lr: float = 1.0) -> Part:
    """``v <- beta v + u``, ``w <- w + lr v`` (Hsu, Qi, Brown 2019, sec. 4.3)."""

    def server_state(start: Tensor) -> dict[str, Tensor]:
        return {"velocity": torch.zeros_like(start)}

    def apply(round: Round) -> Round:
        assert round.combined is not None
        velocity = beta * round.state["velocity"] + round.combined
        return round.but(model=round.model + lr * velocity, state={"velocity": velocity})

    return Part("server-momentum", server_state=server_state, apply=apply)
