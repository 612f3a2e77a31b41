"""What a client measures while it trains, and what it reports about it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from counterpoise.method import Client, Reply, Step
from counterpoise.methods.feddua import branch
from counterpoise.methods.feddua.constants import BRANCH_STEPS
from counterpoise.methods.feddua.options import Options

__all__ = ["add_gradient", "begin", "close_epoch", "report"]


def begin(options: Options, client: Client) -> dict[str, Tensor]:
    """Start the sums of the round; with the branch, take its weights and the client's embedding."""
    memo = {
        "sum": torch.zeros_like(client.start),
        "before": torch.zeros_like(client.start),
        "from": client.start,
        "alphas": client.start.new_zeros(client.local.passes),
        "pass": torch.zeros_like(client.steps),
    }
    if options.branch:
        own = branch.embed(client.index, client.start.dtype)
        if options.learnable:
            own = own + client.state["embedding"]
        memo |= {"branch": client.broadcast["branch"], "embedding": own}
    return memo


def add_gradient(client: Client, step: Step) -> dict[str, Tensor]:
    """Add a step's gradient to the sum."""
    return {**client.memo, "sum": client.memo["sum"] + step.gradient}


def close_epoch(options: Options, client: Client, w: Tensor) -> dict[str, Tensor]:
    """Compute ``rho = |w_end - w_start| / (eta |g_bar|)`` of this epoch, and its factor (eq. 12, or 7-11)."""
    memo = dict(client.memo)
    n = client.examples.to(w.dtype)
    mean = (memo["sum"] - memo["before"]) / (client.steps // client.local.passes)
    pace = client.lr * mean.norm()
    rho = torch.where(pace > 0, (w - memo["from"]).norm() / torch.where(pace > 0, pace, 1), 0)
    alpha = rho / n
    if options.branch:
        phi, own, batch = memo["branch"], memo["embedding"], client.local.batch
        printed = options.branch_loss == "printed"
        phi, own = branch.learn(phi, own, rho, n, batch, options.branch_rate, BRANCH_STEPS, options.learnable, printed)
        memo |= {"branch": phi, "embedding": own}
        alpha = branch.predict_factor(phi, own, batch)
    here = torch.arange(client.local.passes, device=w.device) == memo["pass"]
    memo["alphas"] = torch.where(here, alpha, memo["alphas"])
    return memo | {"before": memo["sum"], "from": w, "pass": memo["pass"] + 1}


def report(options: Options, client: Client, reply: Reply) -> Reply:
    """Report |g_bar| of the round, each epoch's factor and the branch; keep what the embedding learned."""
    memo = client.memo
    reports = {"gradient": memo["sum"].norm() / client.steps, "alphas": memo["alphas"]}
    if options.branch:
        reports["branch"] = memo["branch"]
    state = {}
    if options.learnable:
        state["embedding"] = memo["embedding"] - branch.embed(client.index, client.start.dtype)
    return replace(reply, reports=reports, state=state)
