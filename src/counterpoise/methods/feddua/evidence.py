"""What speaks for or against a claimed count: three kinds of evidence, each an error in log n per client."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from counterpoise.local import Local
from counterpoise.method import Cohort, Tensors, World
from counterpoise.methods.feddua.prior import Prior, expected
from counterpoise.parts.geometry import cosines
from counterpoise.parts.robust import regression, spread

__all__ = [
    "Points",
    "Stream",
    "consistency",
    "displacement",
    "factors",
    "measure",
    "report",
]

_FAR = 2.3
"""A factor of ten, in logarithms: the furthest that a point pulls."""
_STILL = 20.0
"""Logarithms below the median of its round from which on an update is none."""
_LEAST = 0.2
"""The least spread, in log n, of evidence that rests on how clients differ: of the update, and of what the branch has
learned."""
_TURNED = 0.3
"""The same of reports under momentum 1, and less in proportion: rho then depends on how gradients turn, most of all where
steps are few and nearly cancel. With .2, digits had honest clients excluded; claims of three times are 3.7 of .3."""


class Points(NamedTuple):
    """What the server knows of some clients, one number each ``[M]``, in float64 on the CPU; all but `angle` are logarithms."""

    n: Tensor
    """The count claimed."""
    rho: Tensor
    """``|d| / (eta |g_bar| E)``: with plain SGD the steps of an epoch."""
    alpha: Tensor
    """The adjustment factor: what the branch reported, or rho / n (eq. 12)."""
    size: Tensor
    """The count claimed, over the median of its round."""
    length: Tensor
    """The update's norm, over the median of its round."""
    angle: Tensor
    """Its cosine with the mean of its round, less their median."""
    last: Tensor
    """The last layer's share of the norm, over the median of its round."""


class Stream(NamedTuple):
    """One kind of evidence."""

    error: Tensor
    """How far each client's claim lies above what the evidence speaks for, in log n: ``[C]``, NaN without evidence."""
    spread: Tensor
    """How far honest claims do."""
    floor: Tensor
    """The least that the spread may be for each client, ``[C]``."""


def measure(cohort: Cohort, world: World, reports: Tensors, by_branch: bool, heard: Tensor) -> Points:
    """The cohort's points, beside the clients `heard`. A client that neither moved nor reports a gradient gives no evidence, NaN.

    What cannot be (a gradient of 0 that moved a model) is kept as a very small number, or a lie would be no evidence.
    """
    local, updates = world.local, cohort.updates
    ends = world.layout.last.to(updates.device)
    lengths, last = (torch.linalg.vector_norm(some, dim=1, dtype=torch.float64) for some in (updates, updates[:, ends]))
    # The mean of directions: a mean of updates would be the longest one's.
    middle = (heard.to(lengths) / lengths.clamp(min=1e-30)).to(updates) @ updates
    # From here on numbers of each client, and many operations, each cheaper on a CPU.
    small = (cohort.examples, reports["gradient"], lengths, last, cosines(updates, middle))
    counts, gradients, lengths, last, angle = (t.cpu().double() for t in small)
    n = counts.log()
    pace = local.lr(max(world.round, 1)) * local.passes * gradients
    rho = torch.where((lengths > 0) | (gradients > 0), _log(lengths) - _log(pace), torch.nan)
    moved = bool(_middle(lengths[heard]) > 0)
    length = _log(lengths) if moved else torch.full_like(n, torch.nan)
    beside = (v - _middle(v[heard]) for v in (n, length, angle, _log(last) - _log(lengths)))
    # A factor without a rho says nothing of a count.
    alpha = torch.where(rho.isfinite(), factors(reports), torch.nan) if by_branch else rho - n
    return Points(n, rho, alpha, *beside)


def factors(reports: Tensors) -> Tensor:
    """log alpha as clients report it: the mean over their epochs."""
    return _log(reports["alphas"].double()).mean(1)


def report(pooled: Points, mine: Points, prior: Prior, local: Local, witnesses: Tensor | None = None) -> Stream:
    """The factor against the prior's. `witnesses` are errors known to be honest, beside those of the clients."""

    def error(points: Points) -> Tensor:
        return expected(points.n, local) + prior(points.n) - points.alpha

    errors = error(pooled) if witnesses is None else torch.cat([error(pooled), witnesses])
    return Stream(error(mine), spread(_known(errors)), _floor(mine, local, _turning(local)))


def consistency(pooled: Points, mine: Points, local: Local) -> Stream:
    """The claim against the factor that the client reports itself: ``log n - log(rho / alpha)`` (eq. 6)."""
    errors = pooled.n - pooled.rho + pooled.alpha
    middle = _middle(errors)  # a branch that has not learned yet is off for all alike
    return Stream(mine.n - mine.rho + mine.alpha - middle, spread(_known(errors - middle)), _floor(mine, local))


def displacement(pooled: Points, mine: Points, local: Local) -> Stream:
    """The claim against what the update itself looks like: log n fitted on its norm, angle and last layer (ours).

    Nothing is used that a client says about itself but the claim. Before there are data, an update twice as long speaks
    for twice the data.
    """

    def features(points: Points) -> Tensor:
        return torch.stack([points.length, points.angle, points.last], dim=1)

    # Who did not move is no measure of those that did: several of them would turn the fit.
    there = features(pooled).isfinite().all(1) & (pooled.length > -_STILL)
    usual = pooled.n.new_tensor([1.0, 0.0, 0.0])
    # What lies far out must not turn the fit to itself.
    c = regression(features(pooled)[there].clamp(-_FAR, _FAR), pooled.size[there].clamp(-_FAR, _FAR), usual)
    errors = pooled.size - features(pooled) @ c
    return Stream(mine.size - features(mine) @ c, spread(errors[there]), _floor(mine, local))


def _floor(points: Points, local: Local, least: float = _LEAST) -> Tensor:
    """At least half a batch of n samples: counts closer than that take the same steps."""
    return (local.batch / (2 * points.n.exp())).clamp(min=least)


def _turning(local: Local) -> float:
    return _TURNED * float(local.optimizer.spec.options.get("momentum", 0))


def _known(values: Tensor) -> Tensor:
    return values[values.isfinite()]


def _middle(values: Tensor) -> Tensor:
    known = _known(values)
    return known.quantile(0.5) if len(known) else values.new_zeros(())


def _log(values: Tensor) -> Tensor:
    return values.clamp(min=1e-30).log()
