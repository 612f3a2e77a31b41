"""A mean of the server's late models, which is measured and handed out in place of the last one."""

from __future__ import annotations

import torch
from torch import Tensor

from counterpoise.method import Part, Round, Tensors

__all__ = ["averaged"]


def averaged(latest: float = 10.0) -> Part:
    """The model that is measured and handed out is ``x <- x + g (w - x)``, with ``g = (latest + 1)/(t + latest)``.

    w is the server's t-th model, from which clients go on training as before. A round that makes no model does not count
    in t. This is the polynomial-decay averaging of Shamir and Zhang (2013), whose eta is `latest`. At 10, after many
    rounds, the last tenth of them holds two thirds of the weight; 0 is the mean of all models, and the larger it is, the
    closer the mean is to the last model.

    Long steps make the server's model swing around a better one, and cohorts that differ make it swing more. The mean
    lies closer to that better one, but behind a model that still improves fast.
    """

    def server_state(start: Tensor) -> dict[str, Tensor]:
        return {"mean": start.clone(), "last": start.clone(), "rounds": torch.tensor(0, dtype=start.dtype)}

    def apply(round: Round) -> Round:
        rounds = round.state["rounds"] + 1
        newest = (latest + 1) / (float(rounds) + latest)
        mean = torch.lerp(round.state["mean"], round.model, newest)
        return round.but(state={"mean": mean, "last": round.model, "rounds": rounds})

    def scored(model: Tensor, state: Tensors) -> Tensor:
        """The given model, shifted by the difference of the mean from the server's model.

        That is the mean itself unless another part's `scored` has changed the given model already.
        """
        return model + (state["mean"] - state["last"])

    return Part("averaged", server_state=server_state, scored=scored, apply=apply)
