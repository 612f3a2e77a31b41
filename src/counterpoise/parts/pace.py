"""A server step whose length follows the updates: longer as long as the last step was right, shorter when it was not."""

from __future__ import annotations

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Part, Round
from counterpoise.parts.geometry import cosines

__all__ = ["pace"]


def pace(
    most: float = 12.0,
    momentum: float = 0.8,
    least: float = 0.5,
    gain: float = 1.0,
    square: float = 0.99,
    floor: float = 0.3,
) -> Part:
    """The step ``q (1 + q^4 (alpha - 1)) u + (1 - q) alpha z``: u is the combined update, q the share of clients in it.

    alpha, the pace, begins at 1 and stays between `least` and `most`. In every round ``alpha <- alpha exp(gain t)``,
    with t the median cosine of the clients' updates with the step before, over the clients that moved. An update is
    about the direction in which the loss falls. So its cosine with that step says whether it was too short (above 0) or
    too long (below 0). The median leaves the decision to the majority.

    z, the direction, is ``(1 + floor) R M / (sqrt(V) + floor R)``, where M and V are exponential means of u and of its
    square, with the factors `momentum` and `square`, M divided by the sum of its weights, and R is the root of the mean
    of V over the coordinates. So coordinates that move little are moved more, and if all move alike, z is M. If all
    updates are scaled, so are the steps.

    A mean over rounds makes up for the clients that a round does not hear, so ``1 - q`` of the step is along z. The
    update itself is lengthened only if it speaks for nearly all: by alpha if all clients are heard, hardly if half are,
    because colluders among them would be lengthened too. Clients that were left out count as not heard.
    """
    if most < least:
        raise CounterpoiseError(
            f"pace: the longest step is {most:g} mean updates, below the shortest, {least:g}. Make pace (fastest) larger "
            "or pace_least (slowest) smaller."
        )

    def server_state(start: Tensor) -> dict[str, Tensor]:
        empty = {name: torch.zeros_like(start) for name in ("mean", "square", "step")}
        return {**empty, "pace": start.new_ones(()), "rounds": start.new_zeros(())}

    def apply(round: Round) -> Round:
        u, state = round.combined, round.state
        if u is None:
            raise CounterpoiseError("pace needs one update: put it behind a part that combines, such as parts.mean().")
        rounds = state["rounds"] + 1
        m = momentum * state["mean"] + (1 - momentum) * u
        v = square * state["square"] + (1 - square) * u.square()
        size = v.sqrt()
        r = v.mean().sqrt()
        z = torch.where(r > 0, (1 + floor) * r / (size + floor * r), 0) * m / (1 - momentum**rounds)
        t = _agreement(round.cohort.updates, state["step"])
        alpha = (state["pace"] * torch.exp(gain * t)).clamp(least, most)
        heard = len(round.cohort.updates) / round.world.population
        step = heard * (1 + heard**4 * (alpha - 1)) * u + (1 - heard) * alpha * z
        new = {"mean": m, "square": v, "step": step, "pace": alpha, "rounds": rounds}
        return round.but(combined=step, state=new, facts={**round.facts, "pace": float(alpha)})

    return Part("pace", server_state=server_state, apply=apply)


def _agreement(updates: Tensor, step: Tensor) -> Tensor:
    """The median cosine of updates with a step. Updates of zeros do not count; if there are no others, it is 0."""
    each = cosines(updates, step).cpu()  # a median of a few numbers is slow on a GPU
    return torch.where(each == 0, torch.nan, each).nanquantile(0.5).nan_to_num(0)
