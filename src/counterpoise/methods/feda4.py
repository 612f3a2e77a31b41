"""FedA4: less weight for models that collapse to few classes, then a step along the clients' trajectories.

Zhao, Hu, Yang, Wu: FedA4: Federated Learning with Anti-Bias Aggregation and TrAjectory-Based Adaptation,
Transactions on Artificial Intelligence 2(1), 2026. Equations 1-9, Algorithms 1 and 2.

The paper has clients upload the model after every epoch. Only the mean of the displacements is used,
and it telescopes: ``g_i = (1/E) sum_e Delta_i^e = d_i / E``, exactly. So nothing extra is sent.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Method, Part, Round, World
from counterpoise.methods.registry import METHODS
from counterpoise.parts import by_data, cosines, mean, server_step
from counterpoise.parts.weighing import need_weights
from counterpoise.registry import Option, Paper

__all__ = ["feda4"]

PAPER = Paper(
    "FedA4: Federated Learning with Anti-Bias Aggregation and TrAjectory-Based Adaptation",
    "Zhao, Hu, Yang, Wu",
    2026,
    "doi:10.53941/tai.2026.100003",
)

Direction = Literal["printed", "text"]
Modules = Literal["both", "weights", "trajectory", "none"]


@METHODS.register("feda4", group="weighting", paper=PAPER)
def feda4(
    beta: Annotated[float, Option("sharpness of the penalty on accuracies far from the mean", low=0)] = 1.0,
    eta: Annotated[float, Option("length of the trajectory step", low=0, high=1)] = 0.01,
    theta: Annotated[float, Option("pull of each client's displacement towards their mean", low=0, high=1)] = 0.9,
    tau_conc: Annotated[float, Option("concentration from which a client counts as biased", low=0, high=1)] = 0.3,
    tau_sim: Annotated[float, Option("similarity up to which a client counts as biased", low=-1, high=1)] = 0.2,
    direction: Annotated[
        Direction, Option("sign of the trajectory step: as Algorithm 2 prints it, or as the text explains it")
    ] = "printed",
    modules: Annotated[Modules, Option("which of the two phases act; none is FedAvg (section 4.5)")] = "both",
) -> Method:
    """Less weight for models that predict few classes, then a step along the clients' trajectories.

    ``w <- w + sum_i omega_i d_i + eta sum_i omega_i lambda_i D_i g'_i`` (eq. 3, 8, 9; Algorithm 2, lines 14-23). Needs
    a probe set on the server. Algorithm 2 gives biased clients D = +1 and adds, which reinforces them because g_i
    already points downhill. The text says that they are reversed; ``direction="text"`` does that.
    """
    weigh = anti_bias() if modules in ("both", "weights") else by_data()
    step = trajectory_step(beta, eta, theta, tau_conc, tau_sim, direction)
    return Method(
        "feda4",
        weigh=(probing(), weigh) if modules != "none" else (weigh,),
        combine=(mean(),),
        update=(server_step(), step) if modules in ("both", "trajectory") else (server_step(),),
    )


def probing() -> Part:
    """Each client's model on the probe set: concentration and accuracy (Algorithm 2, lines 8 and 9).

    ``phi_i = 1 - H(p_i) / log C``, with p_i the mean prediction and H its entropy (eq. 2). The weights use the
    evenness ``H / log C`` itself, in float64: for nearly collapsed models, 1 - phi would lose all digits.
    """

    def apply(round: Round) -> Round:
        outputs = round.world.probe(round.model + round.cohort.updates)
        p = outputs.double().softmax(2).mean(1)
        evenness = torch.special.entr(p).sum(1) / math.log(p.shape[1]) if p.shape[1] > 1 else torch.ones_like(p[:, 0])
        # A model whose outputs are not finite counts as collapsed; otherwise it would spoil every client's weight.
        evenness = torch.where(evenness.isfinite(), evenness, 0).clamp(0, 1)
        accuracy = (outputs.argmax(2) == round.world.probe_targets).to(p.dtype).mean(1)
        return round.noting(evenness=evenness, concentration=1 - evenness, probe_accuracy=accuracy)

    def check(world: World) -> None:
        _ = world.probe_targets  # raises if there is no probe set

    return Part("probing", apply=apply, check=check, by_counts=False)


def anti_bias() -> Part:
    """``omega_i = (1 - phi_i) / sum_j (1 - phi_j)`` (eq. 3); uniform if every model has collapsed to one class."""

    def apply(round: Round) -> Round:
        weights = _read_note(round, "evenness").to(round.cohort.examples)
        if not bool(weights.sum() > 0):
            weights = torch.ones_like(weights)
        return round.but(weights=weights / weights.sum())

    return Part("anti-bias", apply=apply, by_counts=False)


def trajectory_step(
    beta: float, eta: float, theta: float, tau_conc: float, tau_sim: float, direction: Direction
) -> Part:
    """Phase II: ``w <- w + eta sum_i omega_i lambda_i D_i g'_i`` (eq. 4-9; Algorithm 2, lines 11 and 16-23).

    Line 21 sums g'_i but eq. 8 prints g_i; we follow line 21. Means are over the cohort.
    """

    def apply(round: Round) -> Round:
        weights = need_weights(round, "FedA4's step along trajectories")
        phi, accuracy = _read_note(round, "concentration"), _read_note(round, "probe_accuracy")
        penalty = torch.exp(-beta * (accuracy - accuracy.mean()).square())
        g = round.cohort.updates / round.world.local.passes
        middle = g.mean(0)
        similarity = cosines(g, middle)
        biased = (phi >= tau_conc) | (similarity <= tau_sim)
        sign = torch.where(biased, 1.0, -1.0).to(phi.dtype) * (1 if direction == "printed" else -1)
        factors = (weights * penalty * sign).to(g.dtype)
        step = (1 - theta) * (factors @ g) + theta * factors.sum() * middle
        noted = round.noting(penalty=penalty, similarity=similarity, biased=biased.to(phi.dtype))
        return noted.but(model=round.model + eta * step)

    return Part("trajectory-step", apply=apply, amends=True)


def _read_note(round: Round, name: str) -> Tensor:
    if name not in round.notes:
        raise CounterpoiseError("FedA4's weights and steps need its part probing() before them, in the slot weigh.")
    return round.notes[name]
