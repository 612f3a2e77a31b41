"""A server step whose length follows the updates: longer as long as the last step was right, shorter when it was not."""

from __future__ import annotations

from math import exp

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Part, Round
from counterpoise.parts.columns import Numbers, divided, fetch
from counterpoise.parts.robust import middle

__all__ = ["pace"]


def pace(
    most: float = 12.0,
    momentum: float = 0.8,
    least: float = 0.5,
    gain: float = 1.0,
    square: float = 0.99,
    floor: float = 0.3,
    power: float = 4.0,
    root: float = 0.5,
) -> Part:
    """The step ``q (1 + q^4 (sqrt(alpha) - 1)) u + (1 - q) alpha z``: u is the combined update of the share q of clients.

    The formula shows the defaults: `power` is the exponent 4 of q, and `root` the exponent 1/2 of alpha.

    alpha, the pace, begins at 1 and stays between `least` and `most`. In every round ``alpha <- alpha exp(gain t)``,
    with t the median cosine of the clients' updates with the step before, over the clients that moved. An update is
    about the direction in which the loss falls. So its cosine with that step says whether it was too short (above 0) or
    too long (below 0). The median leaves the decision to the majority.

    z, the direction, is ``(1 + floor) R M / (sqrt(V) + floor R)``, where M and V are exponential means of u and of its
    square, with the factors `momentum` and `square`, M divided by the sum of its weights, and R is the root of the mean
    of V over the coordinates. So coordinates that move little are moved more, and if all move alike, z is M. If all
    updates are scaled, so are the steps.

    A mean over rounds makes up for the clients that a round does not hear, so ``1 - q`` of the step is along z. The
    update itself is lengthened only if it speaks for nearly all: by the root of alpha if all clients are heard, hardly
    if half are, because colluders among them would be lengthened too. By its root, because no mean over rounds damps
    these steps: by alpha itself they overshoot. Clients that were left out count as not heard.
    """
    if most < least:
        raise CounterpoiseError(
            f"pace: the longest step is {most:g} mean updates, below the shortest, {least:g}. Make pace (fastest) larger "
            "or pace_least (slowest) smaller."
        )

    def server_state(start: Tensor) -> dict[str, Tensor]:
        empty = {name: torch.zeros_like(start) for name in ("mean", "square", "step")}
        return {**empty, "pace": torch.tensor(1, dtype=start.dtype), "rounds": torch.tensor(0, dtype=start.dtype)}

    def apply(round: Round) -> Round:
        u, state = round.combined, round.state
        if u is None:
            raise CounterpoiseError("pace needs one update: put it behind a part that combines, such as parts.mean().")
        rounds = state["rounds"] + 1
        m = torch.lerp(state["mean"], u, 1 - momentum)
        v = torch.lerp(state["square"], u.square(), 1 - square)
        cosines, mean_square = _read(round.cohort.updates, state["step"], v)
        t, r = middle(cosines[cosines != 0]), mean_square**0.5
        alpha = min(max(float(state["pace"]) * exp(gain * t), least), most)
        heard = len(round.cohort.updates) / round.world.population
        step = heard * (1 + heard**power * (alpha**root - 1)) * u
        if r > 0:  # the weights of M sum to 1 - momentum^rounds
            z = m * ((1 + floor) * r / (1 - momentum ** float(rounds))) / (v.sqrt() + floor * r)
            step += (1 - heard) * alpha * z
        pace = torch.tensor(alpha, dtype=rounds.dtype)
        new = {"mean": m, "square": v, "step": step, "pace": pace, "rounds": rounds}
        return round.but(combined=step, state=new, facts={**round.facts, "pace": alpha})

    return Part("pace", server_state=server_state, apply=apply)


def _read(updates: Tensor, step: Tensor, v: Tensor) -> tuple[Numbers, float]:
    """The cosine of each update with a step, 0 if either is zero, and the mean of V; a GPU is waited for once."""
    wholes = (whole.expand(len(updates)) for whole in (torch.linalg.vector_norm(step), v.mean()))
    own, along, length, mean = fetch(torch.linalg.vector_norm(updates, dim=1), updates @ step, *wholes)
    return divided(along, own * length).clip(-1, 1), float(mean[0])
