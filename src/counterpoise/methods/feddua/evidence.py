"""The evidence for or against a claimed count: three kinds, each an error in log n per client."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from counterpoise.local import Local
from counterpoise.method import Cohort, Tensors, World
from counterpoise.methods.feddua.constants import FARTHEST, LEAST_SPREAD, MOMENTUM_SPREAD, STILL, TINY
from counterpoise.methods.feddua.prior import Prior, expect
from counterpoise.parts.geometry import cosines
from counterpoise.parts.robust import median, regression, spread

__all__ = [
    "Points",
    "Stream",
    "check_consistency",
    "check_displacement",
    "check_report",
    "measure",
    "read_factors",
]


class Points(NamedTuple):
    """What the server knows about M clients, one number each, in float64 on the CPU; all but `angle` are logarithms."""

    n: Tensor
    """The claimed count."""
    rho: Tensor
    """``|d| / (eta |g_bar| E)``; with plain SGD, the steps of an epoch."""
    alpha: Tensor
    """The adjustment factor: what the branch reported, or rho / n (eq. 12)."""
    size: Tensor
    """The claimed count, over the median of its round."""
    length: Tensor
    """The update's norm, over the median of its round."""
    angle: Tensor
    """The update's cosine with the mean of its round, less the median of these cosines."""
    last: Tensor
    """The last layer's share of the norm, over the median of its round."""


class Stream(NamedTuple):
    """One kind of evidence."""

    error: Tensor
    """How far each client's claim lies above the count that the evidence suggests, in log n: ``[C]``, NaN if none."""
    spread: Tensor
    """How far honest claims lie off."""
    floor: Tensor
    """The least spread to assume for each client, ``[C]``."""


def measure(cohort: Cohort, world: World, reports: Tensors, by_branch: bool, heard: Tensor) -> Points:
    """Measure the cohort's points, relative to the clients `heard`.

    A client that neither moved nor reports a gradient gives no evidence: NaN. An impossible value (a gradient of 0 that
    moved a model) becomes a very small number, because otherwise a lie would leave no evidence.
    """
    local, updates = world.local, cohort.updates
    ends = world.layout.last.to(updates.device)
    lengths, last = (torch.linalg.vector_norm(some, dim=1, dtype=torch.float64) for some in (updates, updates[:, ends]))
    # Average directions, because the longest update would dominate an average of updates.
    middle = (heard.to(lengths) / lengths.clamp(min=TINY)).to(updates) @ updates
    # What follows is many small operations on one number per client, which are cheaper on a CPU.
    small = (cohort.examples, reports["gradient"], lengths, last, cosines(updates, middle))
    counts, gradients, lengths, last, angle = (t.cpu().double() for t in small)
    n = counts.log()
    pace = local.lr(max(world.round, 1)) * local.passes * gradients
    rho = torch.where((lengths > 0) | (gradients > 0), _log(lengths) - _log(pace), torch.nan)
    moved = bool(_take_median(lengths[heard]) > 0)
    length = _log(lengths) if moved else torch.full_like(n, torch.nan)
    relative = (v - _take_median(v[heard]) for v in (n, length, angle, _log(last) - _log(lengths)))
    # A factor without a rho says nothing about a count.
    alpha = torch.where(rho.isfinite(), read_factors(reports), torch.nan) if by_branch else rho - n
    return Points(n, rho, alpha, *relative)


def read_factors(reports: Tensors) -> Tensor:
    """Read log alpha from clients' reports: the mean over their epochs."""
    return _log(reports["alphas"].double()).mean(1)


def check_report(pooled: Points, mine: Points, prior: Prior, local: Local, witnesses: Tensor | None = None) -> Stream:
    """Compare each factor with the prior's. `witnesses` are errors known to be honest, beside those of the clients."""

    def error(points: Points) -> Tensor:
        return expect(points.n, local) + prior(points.n) - points.alpha

    errors = error(pooled) if witnesses is None else torch.cat([error(pooled), witnesses])
    return Stream(error(mine), spread(_keep_finite(errors)), _bound_spread(mine, local, _bound_by_momentum(local)))


def check_consistency(pooled: Points, mine: Points, local: Local) -> Stream:
    """Compare each claim with the factor that the client itself reports: ``log n - log(rho / alpha)`` (eq. 6)."""
    errors = pooled.n - pooled.rho + pooled.alpha
    middle = _take_median(errors)  # a branch that has not learned yet is off by the same for all
    return Stream(
        mine.n - mine.rho + mine.alpha - middle, spread(_keep_finite(errors - middle)), _bound_spread(mine, local)
    )


def check_displacement(pooled: Points, mine: Points, local: Local) -> Stream:
    """Compare each claim with what the update looks like: fit log n on its norm, angle and last layer (ours).

    Of all that a client says about itself, only the claim is used. Before there are data, an update twice as long
    suggests twice the data.
    """

    def features(points: Points) -> Tensor:
        return torch.stack([points.length, points.angle, points.last], dim=1)

    # Clients that did not move say nothing about those that did, and several of them would tilt the fit.
    there = features(pooled).isfinite().all(1) & (pooled.length > -STILL)
    usual = pooled.n.new_tensor([1.0, 0.0, 0.0])
    # A distant point must not tilt the fit toward itself.
    c = regression(
        features(pooled)[there].clamp(-FARTHEST, FARTHEST), pooled.size[there].clamp(-FARTHEST, FARTHEST), usual
    )
    errors = pooled.size - features(pooled) @ c
    return Stream(mine.size - features(mine) @ c, spread(errors[there]), _bound_spread(mine, local))


def _bound_spread(points: Points, local: Local, least: float = LEAST_SPREAD) -> Tensor:
    """Allow at least half a batch of n samples, because counts closer than that take the same steps."""
    return (local.batch / (2 * points.n.exp())).clamp(min=least)


def _bound_by_momentum(local: Local) -> float:
    return MOMENTUM_SPREAD * float(local.optimizer.spec.options.get("momentum", 0))


def _keep_finite(values: Tensor) -> Tensor:
    return values[values.isfinite()]


def _take_median(values: Tensor) -> Tensor:
    finite = _keep_finite(values)
    return median(finite) if len(finite) else values.new_zeros(())


def _log(values: Tensor) -> Tensor:
    return values.clamp(min=TINY).log()
