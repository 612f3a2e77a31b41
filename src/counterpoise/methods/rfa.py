"""RFA: the geometric median of the clients' updates.

Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning, IEEE Transactions on Signal
Processing 70, 2022, eq. 4-6 and Algorithm 2 (the smoothed Weiszfeld algorithm).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from counterpoise.method import Method, Part, Round
from counterpoise.methods.registry import METHODS
from counterpoise.parts import by_data, server_step, square_distances, uniform
from counterpoise.parts.weighing import need_weights
from counterpoise.registry import Option, Paper

__all__ = ["geometric_median", "rfa"]

PAPER = Paper("Robust Aggregation for Federated Learning", "Pillutla, Kakade, Harchaoui", 2022, "arXiv:1912.13445")


Weights = Literal["uniform", "data"]


@METHODS.register("rfa", group="robustness", paper=PAPER)
def rfa(
    tolerance: Annotated[float, Option("how far the objective may exceed the best, as a share of it", above=0)] = 1e-6,
    iterations: Annotated[int, Option("maximum number of iterations", low=1)] = 10_000,
    weights: Annotated[
        Weights, Option("equal weights, or by claimed data as in the paper, where a single claim can take over")
    ] = "uniform",
    lr: Annotated[float, Option("server learning rate", above=0)] = 1.0,
) -> Method:
    """The geometric median of the updates.

    ``w <- w + lr argmin_z sum_i p_i |z - d_i|`` (eq. 4), with ``p_i = 1/|S|``, or ``n_i/n`` as in the paper. Up to half
    of the weight may be arbitrary: half of the clients, or half of the data they claim.
    """
    weigh = uniform() if weights == "uniform" else by_data()
    return Method("rfa", weigh=(weigh,), combine=(median_point(tolerance, iterations),), update=(server_step(lr),))


def median_point(tolerance: float, iterations: int) -> Part:
    """The geometric median as a weighted mean of the updates. The run records the weights and the iterations taken."""

    def apply(round: Round) -> Round:
        given = need_weights(round, "A geometric median")
        squares = square_distances(round.cohort.updates)
        weights, took = geometric_median(squares, given.cpu(), tolerance, iterations)
        weights = weights.to(round.model.device)
        combined = weights.to(round.model.dtype) @ round.cohort.updates
        return round.but(weights=weights, combined=combined, facts={**round.facts, "iterations": took})

    return Part("geometric-median", apply=apply)


def geometric_median(squares: Tensor, shares: Tensor, tolerance: float, iterations: int) -> tuple[Tensor, int]:
    """Weights b, with sum 1, for which ``z = sum_i b_i x_i`` minimises ``f(z) = sum_i a_i |z - x_i|``.

    Also returns how many iterations it took; if it took all of `iterations`, they were too few.

    Weiszfeld's step is ``b_i ~ a_i / max(nu, |z - x_i|)`` (Algorithm 2). It needs only the points' squared distances Q,
    ``|z - x_i|^2 = (Q b)_i - b'Qb/2``, so an iteration costs little next to Q itself. It ends when the gradient g shows
    that z is good enough: ``f(z) - f* <= |g| |z - z*| <= |g| 2 f(z)``. If one of the points is the median, the steps
    would creep towards it, so that case is tested first and takes no steps.

    >>> line = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64)
    >>> geometric_median((line[:, None] - line).square(), torch.ones(3), 1e-6, 100)
    (tensor([0., 1., 0.], dtype=torch.float64), 0)
    """
    a = shares.double() / shares.sum()
    distances = squares.sqrt()
    costs = distances @ a
    best = int(costs.argmin())
    scale = float(costs[best])
    here = squares[best] <= (1e-12 * scale) ** 2
    pull = torch.where(here, 0, a / distances[best].where(~here, 1))
    # The pull of all other points on this one; -d'Qd/2 is the squared length of sum_i d_i x_i if d sums to 0.
    toward = pull - here / here.sum() * pull.sum()
    if scale == 0 or float(_length(toward, squares)) < float(a[here].sum()) - tolerance / 2:
        return here.double() / here.sum(), 0
    b = a
    for taken in range(iterations):
        reached = squares @ b
        lengths = (reached - b @ reached / 2).clamp(min=0).sqrt().clamp(min=1e-9 * scale)
        pull = a / lengths
        new = pull / pull.sum()
        if float(pull.sum() * _length(new - b, squares)) <= tolerance / 2:
            return b, taken
        b = new
    return b, iterations


def _length(direction: Tensor, squares: Tensor) -> Tensor:
    return (-direction @ squares @ direction / 2).clamp(min=0).sqrt()
