"""The server's own training on its proxy set, and the prior that follows from it (section IV-B)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from counterpoise.local import Local
from counterpoise.method import Tensors, World
from counterpoise.methods.feddua.constants import LADDER, REHEARSE_EVERY
from counterpoise.methods.feddua.evidence import Points, check_report, measure
from counterpoise.methods.feddua.options import Options
from counterpoise.methods.feddua.prior import Line, Network, Prior, fit_line, fit_network

__all__ = ["choose_priors", "is_due", "rehearse"]


def is_due(state: Tensors, options: Options, round: int) -> bool:
    """Whether the server must rehearse: in round 1, every ten rounds from there, and whenever a fit is missing."""
    fitted = all(bool(state[name].isfinite().all()) for name in ("line", "network") if name in state)
    return options.rehearses and (round % REHEARSE_EVERY == 1 or not fitted)


def rehearse(world: World, options: Options, name: str) -> dict[str, Tensor]:
    """Train at a ladder of sizes from the present model, and fit the prior to the result.

    Also keep how far each size lies off the fit: these errors are honest, however few the clients are.
    """
    batch, most, local = world.local.batch, world.proxy_size, world.local
    sizes = torch.logspace(math.log10(batch), math.log10(most), LADDER).round().long().clamp(1, most).tolist()
    cohort = world.rehearse(sizes)
    everyone = torch.ones(len(cohort), dtype=torch.bool)
    reports = {what: tensor.cpu() for what, tensor in cohort.reports[name].items()}
    points = measure(cohort, world, reports, options.branch, everyone)
    prior: Prior = (line := fit_line(points.n, points.alpha, local))
    found = {"line": torch.stack(line)}
    if options.prior == "network":
        prior = network = fit_network(points.n, points.alpha, local, world.key)
        found["network"] = network.weights
    if options.witnessed:
        errors = check_report(points, points, prior, local).error
        found["witnesses"] = torch.where(errors.isfinite(), errors, torch.inf)
    return found


def choose_priors(state: Tensors, pooled: Points, options: Options, local: Local) -> tuple[Prior, Prior]:
    """Choose the prior that factors are compared with, and the one that counts are solved from."""
    if options.rehearses:
        ours: Prior = Line(*state["line"].unbind())
        if options.prior == "network":
            ours = Network(state["network"])
        return ours, ours
    prior = fit_line(pooled.n, pooled.alpha, local)
    # A count follows from rho, whatever factor the branch has learned.
    return prior, fit_line(pooled.n, pooled.rho - pooled.n, local) if options.branch else prior
