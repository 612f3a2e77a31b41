"""FedDua: check claimed data counts against what training on that much data looks like.

Wu, Jin, Hao, Yu: Local Data Quantity-Aware Weighted Averaging for Federated Learning with Dishonest Clients,
equations 4-12 and Algorithm 1. It is a trust step in front of any method.

With plain SGD an epoch moves a client by exactly ``-eta R g_bar``. R is its number of steps and g_bar the mean of the
gradients that it followed. So ``rho = |w_end - w_start| / (eta |g_bar|)`` is R, and ``alpha = rho / n`` is about
1 / batch (eq. 12). The check is only as good as the |g_bar| that the client reports about itself. A second kind of
evidence (ours) uses the update alone. docs/methods/feddua.md begins with the lies that neither can see.
"""

from __future__ import annotations

import logging
from functools import partial

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Method, Part, World
from counterpoise.methods.feddua import branch, client
from counterpoise.methods.feddua.constants import (
    BRANCH_RATE,
    EMBEDDING_SIZE,
    LADDER,
    PATIENCE,
    PROXY_BATCHES,
    REMEMBERED,
    THRESHOLD,
)
from counterpoise.methods.feddua.evidence import Points
from counterpoise.methods.feddua.options import (
    BranchRate,
    Embedding,
    Estimate,
    Evidence,
    Factor,
    Loss,
    Memory,
    Options,
    Paper,
    Patience,
    Prior,
    Threshold,
    follow_paper,
)
from counterpoise.methods.feddua.prior import NETWORK, is_linear
from counterpoise.methods.feddua.verdicts import judge
from counterpoise.methods.registry import METHODS
from counterpoise.registry import Paper as Reference

__all__ = ["check_counts", "feddua"]

log = logging.getLogger(__name__)

PAPER = Reference(
    "Local Data Quantity-Aware Weighted Averaging for Federated Learning with Dishonest Clients", "Wu, Jin, Hao, Yu"
)


@METHODS.register("feddua", group="trust", paper=PAPER, wraps="method")
def feddua(
    method: Method | str = "fedavg",
    factor: Factor = "branch",
    prior: Prior = "cohort",
    evidence: Evidence = "both",
    memory: Memory = True,
    estimate: Estimate = "prior",
    threshold: Threshold = THRESHOLD,
    patience: Patience = PATIENCE,
    embedding: Embedding = "fixed",
    branch_rate: BranchRate = BRANCH_RATE,
    paper: Paper = False,
    branch_loss: Loss = "relative",
) -> Method:
    """Checks the data counts that clients claim, in front of any method; alone, in front of fedavg.

    The server compares ``alpha_i = |w_i - w| / (eta |g_bar_i| n_i)`` (eq. 12) with honest clients' factor at that
    count. It replaces a claim that is too large by an estimate and warns the client. A client that goes on is excluded
    until ten of its claims in a row fit.
    """
    assert isinstance(method, Method)  # the registry turned a name into a method
    options = Options(
        factor, prior, evidence, memory, estimate, threshold, patience, embedding, branch_rate, branch_loss
    )
    if paper:
        options = follow_paper(options)
    inner = sum(part.name.startswith("counts") for part in method.trust)
    return method.adding(
        f"feddua:{method.name}", trust=check_counts(options, f"counts-{inner + 1}" if inner else "counts")
    )


def check_counts(options: Options, name: str = "counts") -> Part:
    """Build the trust step: what a client reports about its training, and the server's verdict."""
    return Part(
        name,
        server_state=partial(start_state, options),
        client_record=partial(start_record, options),
        client_state=(lambda start: {"embedding": start.new_zeros(EMBEDDING_SIZE)}) if options.learnable else None,
        when_lost="it forgets what it learned about its embedding" if options.learnable else "",
        begin=partial(client.begin, options),
        after_step=client.add_gradient,
        after_epoch=partial(client.close_epoch, options),
        finish=partial(client.report, options),
        broadcast=(lambda state: {"branch": state["branch"]}) if options.branch else None,
        apply=lambda round: judge(round, options, name),
        check=partial(refuse_unsuitable, options),
    )


def start_state(options: Options, start: Tensor) -> dict[str, Tensor]:
    """Lay out what the server remembers; infinity and -1 mark what is still missing."""
    columns = len(Points._fields) + len(options.kinds)
    state = {
        "recent": start.new_full((REMEMBERED, columns), torch.inf, dtype=torch.float64),
        "ids": start.new_full((REMEMBERED,), -1, dtype=torch.int64),
        "line": start.new_full((2,), torch.inf, dtype=torch.float64),
    }
    if options.rehearses and options.prior == "network":
        state["network"] = start.new_full((NETWORK.size,), torch.inf, dtype=torch.float64)
    if options.witnessed:
        state["witnesses"] = start.new_full((LADDER,), torch.inf, dtype=torch.float64)
    return state | ({"branch": branch.start_branch(start)} if options.branch else {})


def start_record(options: Options, start: Tensor) -> dict[str, Tensor]:
    """Lay out what the server keeps about a client: its warnings, and rounds and errors by kind of evidence."""
    number = start.new_zeros((), dtype=torch.float64)
    kinds = number.new_zeros(len(options.kinds))
    return {"rounds": kinds, "warnings": number, "sums": kinds.clone()}


def refuse_unsuitable(options: Options, world: World) -> None:
    """Refuse settings in which steps say nothing about data, or a proxy set that is too small."""
    if world.local.steps is not None:
        raise CounterpoiseError(
            "feddua checks a client's count by the steps that it takes over its data; "
            "with local.steps they say nothing about the data. Set local.epochs instead."
        )
    least = PROXY_BATCHES * world.local.batch
    if options.rehearses and world.proxy_size < least:
        raise CounterpoiseError(
            f"feddua with prior={options.prior!r} needs a proxy set of at least {least} samples (two batches) on the "
            f"server, and it has {world.proxy_size}. Load the federation with proxy=1000 "
            "(in a configuration data.proxy = 1000), or choose prior='cohort' without paper."
        )
    if not is_linear(world.local):
        log.warning(
            "feddua: under this optimizer the length of an update says little about the count. Verdicts are recorded, "
            "but no claim is corrected and no client is excluded."
        )
