"""FedBaC: clients weighed by how well and how steadily they agree with the server's momentum.

Niebuhr: FedBaC: Federated Bias-and-Consensus Aware Aggregation, course report, Auburn University.

Equations are cited by section. The report contradicts itself in places; each reading is an option,
and docs/methods/fedbac.md says which is which and what each does. Two things differ on purpose. The
server computes C and R from what it received; the report has clients grade themselves. Round 1, which
is 0/0 as printed, falls back to weights by data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from torch import Tensor

from counterpoise.method import Client, Method, Part, Round, Step, World
from counterpoise.methods.registry import METHODS
from counterpoise.parts import cosines, mean
from counterpoise.parts.updating import need_combined
from counterpoise.registry import Option, Paper

__all__ = ["fedbac", "fedbac_soft"]

PAPER = Paper("FedBaC: Federated Bias-and-Consensus Aware Aggregation", "Niebuhr")

Align = Literal["step", "gradient", "update"]
Score = Literal["clip", "soft", "author"]
Momentum = Literal["weighted", "data"]
Reliability = Literal["stability", "validation", "none"]

Beta = Annotated[float, Option("decay of the server's momentum", low=0, below=1)]
Gamma = Annotated[float, Option("sharpness of the consensus score; 0 turns it off", low=0)]
Strength = Annotated[float, Option("lambda, weight of the clients' regulariser; 0 turns it off", low=0)]
Alpha = Annotated[float, Option("how much weight an unsteady client loses", low=0)]
Window = Annotated[int, Option("H, how many of a client's last cosines count", low=2)]
Eta = Annotated[float, Option("server learning rate", above=0)]
AlignOption = Annotated[
    Align,
    Option(
        "what the regulariser aligns with the momentum: the coming step, the gradient as in Algorithm 1, "
        "or the update so far as in section 3.4"
    ),
]
ScoreOption = Annotated[Score, Option("consensus: max(0, c)^gamma, ((1 + c)/2)^gamma, or as in the author's code")]
MomentumOption = Annotated[
    Momentum, Option("the momentum follows the weighted update (section 3.5) or the data-weighted one (section 3.2)")
]
ReliabilityOption = Annotated[
    Reliability, Option("from the variance of a client's cosines, from its accuracy on the probe set, or none")
]


@METHODS.register("fedbac", group="weighting", paper=PAPER)
def fedbac(
    beta: Beta = 0.9,
    gamma: Gamma = 1.0,
    strength: Strength = 1e-6,
    alpha: Alpha = 1.0,
    window: Window = 5,
    eta: Eta = 1.0,
    align: AlignOption = "step",
    score: ScoreOption = "clip",
    momentum: MomentumOption = "weighted",
    reliability: ReliabilityOption = "stability",
) -> Method:
    """Weights by agreement with the server's momentum and by its steadiness, as printed.

    ``alpha_i = R_i C_i / sum_j R_j C_j``, ``w <- w + eta sum_i alpha_i d_i`` (section 3.5). Under extreme
    label skew the printed form collapses: the weights feed the momentum that scores them.
    """
    return Method(
        "fedbac",
        local=(alignment(strength, align),) if strength else (),
        weigh=(consensus(gamma, alpha, window, score, reliability),),
        combine=(mean(),),
        update=(direction(beta, eta, momentum, sent=strength > 0),),
    )


@METHODS.register("fedbac-soft", group="weighting", paper=PAPER)
def fedbac_soft(
    beta: Beta = 0.9,
    gamma: Gamma = 1.0,
    strength: Strength = 0.0,
    alpha: Alpha = 1.0,
    window: Window = 5,
    eta: Eta = 1.0,
    align: AlignOption = "step",
    score: ScoreOption = "soft",
    momentum: MomentumOption = "data",
    reliability: ReliabilityOption = "stability",
) -> Method:
    """FedBaC with a soft score and a data-weighted momentum, which does not collapse.

    ``C_i = ((1 + c_i)/2)^gamma`` and ``v <- beta v + (1 - beta) sum_i (n_i/n) d_i``. The regulariser is off: at
    the printed strength it changed no accuracy on digits, and it costs a second derivative.
    """
    method = fedbac(beta, gamma, strength, alpha, window, eta, align, score, momentum, reliability)
    return method.replacing("fedbac-soft")


def alignment(strength: float, align: Align) -> Part:
    """The gradient of ``lambda (1 - cos(a, v))`` (section 3.4; Algorithm 1, lines 10-14).

    With ``a = -g`` (step) or ``a = g`` (gradient) it takes one Hessian-vector product:
    ``grad cos(g, v) = H (v^ - c g^) / |g|``. With ``a = w - w_t`` (update) it is ``-(v^ - c u^) / |u|``.
    """
    sign = {"step": 1.0, "gradient": -1.0, "update": -1.0}[align]

    def gradient(client: Client, step: Step, g: Tensor) -> Tensor:
        v = client.shared["direction"]["v"]
        own = step.w - client.start if align == "update" else step.gradient
        turn = _cosine_gradient(own, v)
        return g + sign * strength * (turn if align == "update" else step.curvature(turn))

    return Part(
        "alignment",
        reads=("direction",),
        gradient=gradient,
        second_order=align != "update",
    )


def _cosine_gradient(own: Tensor, v: Tensor) -> Tensor:
    """``(v^ - c a^) / |a|``, the derivative of ``cos(a, v)`` in a; zero if either is zero."""
    length, reach = own.norm(), v.norm()
    there = (length > 0) & (reach > 0)
    unit, aim = own / torch.where(there, length, 1), v / torch.where(there, reach, 1)
    return torch.where(there, aim - (unit @ aim) * unit, 0) / torch.where(there, length, 1)


def consensus(gamma: float, alpha: float, window: int, score: Score, reliability: Reliability) -> Part:
    """``R_i C_i`` (sections 3.2, 3.3, 3.5), both computed on the server from the update received.

    ``c_i = cos(d_i, v)``, ``C_i = max(0, c_i)^gamma``, ``R_i = exp(-alpha Var)`` over the client's last H cosines
    (Algorithm 1, line 20; section 3.3 prints H + 1). No cosine is stored while v is 0.
    """

    def client_record(start: Tensor) -> dict[str, Tensor]:
        return {"cosines": start.new_zeros(window), "seen": start.new_zeros((), dtype=torch.int64)}

    def apply(round: Round) -> Round:
        cohort, v = round.cohort, round.shared["direction"]["v"]
        angles = cosines(cohort.updates, v)
        if score == "author":  # the author's code divides by |v| twice and then clamps
            angles = (angles / v.norm().clamp(min=torch.finfo(v.dtype).tiny)).clamp(-1, 1)
        records = round.records
        if bool(v.any()):
            longer = torch.cat([records["cosines"][:, 1:], angles[:, None]], dim=1)
            records = {"cosines": longer, "seen": (records["seen"] + 1).clamp(max=window)}
        steady = reliabilities(round, records)
        agreed = ((1 + angles) / 2 if score == "soft" else angles.clamp(min=0)) ** gamma
        weights = (steady * agreed).to(cohort.examples)
        if not bool(v.any()) or not bool(weights.sum() > 0):
            weights = torch.ones_like(cohort.examples) if score == "author" else cohort.examples
        noted = round.noting(cosine=angles, consensus=agreed, reliability=steady)
        return noted.but(weights=weights / weights.sum(), records=records)

    def reliabilities(round: Round, records: Mapping[str, Tensor]) -> Tensor:
        if reliability == "none":
            return torch.ones_like(records["cosines"][:, 0])
        if reliability == "validation":
            outputs = round.world.probe(round.model + round.cohort.updates)
            accuracy = (outputs.argmax(2) == round.world.probe_targets).to(outputs.dtype).mean(1)
            return torch.exp(-alpha * (1 - accuracy))
        return torch.exp(-alpha * recent_variance(records["cosines"], records["seen"]))

    def check(world: World) -> None:
        if reliability == "validation":
            _ = world.probe_targets  # raises if there is no probe set

    return Part(
        "consensus",
        reads=("direction",),
        client_record=client_record,
        apply=apply,
        # Without a momentum, as in the first round, weights are by data.
        by_counts=score != "author" and (lambda shared: not bool(shared["direction"]["v"].any())),
        check=check,
    )


def recent_variance(values: Tensor, seen: Tensor) -> Tensor:
    """The population variance of the last `seen` entries of each row; 0 with fewer than two."""
    counted = (torch.arange(values.shape[1], device=values.device) >= values.shape[1] - seen[:, None]).to(values.dtype)
    count = seen.clamp(min=1).to(values.dtype)
    middle = (values * counted).sum(1) / count
    return ((values - middle[:, None]).square() * counted).sum(1) / count


def direction(beta: float, eta: float, momentum: Momentum, sent: bool) -> Part:
    """``w <- w + eta u`` and ``v <- beta v + (1 - beta) u`` (section 3.5), or v by data (section 3.2)."""

    def apply(round: Round) -> Round:
        followed = combined = need_combined(round)
        if momentum == "data":
            shares = round.cohort.examples / round.cohort.examples.sum()
            followed = shares.to(followed.dtype) @ round.cohort.updates
        v = beta * round.state["v"] + (1 - beta) * followed
        return round.but(model=round.model + eta * combined, state={"v": v})

    return Part(
        "direction",
        server_state=lambda start: {"v": torch.zeros_like(start)},
        broadcast=(lambda state: {"v": state["v"]}) if sent else None,  # only the clients' regulariser reads it
        apply=apply,
        by_counts=momentum == "data",
    )
