"""Server momentum that grows as successive combined updates agree."""

from __future__ import annotations

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Part, Round
from counterpoise.parts.geometry import cosines

__all__ = ["steady"]


def steady(most: float = 0.9, mean: float = 0.8, agreement: float = 0.9) -> Part:
    """Nesterov momentum ``u + beta v``, ``v <- beta v + u``, with ``beta = most max(0, s)``.

    s is an exponential mean, with factor `agreement`, of the cosine of the combined update u with the exponential mean,
    with factor `mean`, of those before it. Nothing comes before the first, so that its cosine is 0. Fixed momentum
    helps in some worlds and ruins others; updates that keep turning leave beta at 0.
    """

    def server_state(start: Tensor) -> dict[str, Tensor]:
        return {"mean": torch.zeros_like(start), "velocity": torch.zeros_like(start), "agreement": start.new_zeros(())}

    def apply(round: Round) -> Round:
        u, state = round.combined, round.state
        if u is None:
            raise CounterpoiseError(
                "steady needs one update: put it behind a part that combines, such as parts.mean()."
            )
        cosine = cosines(u[None], state["mean"])[0]
        s = agreement * state["agreement"] + (1 - agreement) * cosine
        beta = most * s.clamp(min=0)
        velocity = beta * state["velocity"] + u
        new = {"mean": mean * state["mean"] + (1 - mean) * u, "velocity": velocity, "agreement": s}
        return round.but(combined=u + beta * velocity, state=new, facts={**round.facts, "momentum": float(beta)})

    return Part("steady", server_state=server_state, apply=apply)
