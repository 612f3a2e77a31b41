"""FedDua: claimed data counts checked against what training on so much data looks like.

Wu, Jin, Hao, Yu: Local Data Quantity-Aware Weighted Averaging for Federated Learning with Dishonest Clients,
equations 4-12 and Algorithm 1. A trust step in front of any method.

With plain SGD an epoch moves a client by ``-eta R g_bar`` exactly, R its number of steps and g_bar the mean of the
gradients that it followed. So ``rho = |w_end - w_start| / (eta |g_bar|)`` is R, and ``alpha = rho / n`` about 1 / batch
(eq. 12). The check is as good as the |g_bar| that the client reports about itself; a second kind of evidence (ours) uses
the update alone. docs/methods/feddua.md says first which lies neither can see.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Client, Method, Part, Reply, Step, World
from counterpoise.methods.feddua import branch
from counterpoise.methods.feddua.evidence import Points
from counterpoise.methods.feddua.options import (
    BRANCH_STEPS,
    LADDER,
    REMEMBERED,
    Embedding,
    Estimate,
    Evidence,
    Factor,
    Loss,
    Options,
    Prior,
)
from counterpoise.methods.feddua.prior import NETWORK, linear
from counterpoise.methods.feddua.verdicts import judged
from counterpoise.methods.registry import METHODS
from counterpoise.registry import Option, Paper

__all__ = ["feddua"]

log = logging.getLogger(__name__)

PAPER = Paper(
    "Local Data Quantity-Aware Weighted Averaging for Federated Learning with Dishonest Clients", "Wu, Jin, Hao, Yu"
)


@METHODS.register("feddua", group="trust", paper=PAPER, wraps="method")
def feddua(
    method: Method | str = "fedavg",
    factor: Annotated[
        Factor, Option("the adjustment factor: predicted by the quantity-aware branch (eq. 7), or computed (eq. 12)")
    ] = "branch",
    prior: Annotated[
        Prior,
        Option(
            "where honest factors are known from: the server's training on its proxy set, fitted by a line or by a small network, or the cohort's majority"
        ),
    ] = "cohort",
    evidence: Annotated[
        Evidence, Option("what a claim is held against: the client's report, the update it sent, or both")
    ] = "both",
    memory: Annotated[bool, Option("judge by a client's evidence over its rounds, not of one alone")] = True,
    estimate: Annotated[
        Estimate, Option("a rejected count is estimated by the prior, or by the reported factor as in line 13")
    ] = "prior",
    threshold: Annotated[float, Option("standard deviations from which a claim is rejected", above=0)] = 3.5,
    patience: Annotated[int, Option("warnings after which a client is excluded", low=0)] = 3,
    embedding: Annotated[Embedding, Option("whether the branch's embedding of a client is learned with it")] = "fixed",
    branch_rate: Annotated[float, Option("lambda in eq. 11, the branch's learning rate", above=0)] = 0.1,
    paper: Annotated[
        bool,
        Option(
            "the paper's own combination: branch with the printed loss, network, report, estimate by report, no memory"
        ),
    ] = False,
    branch_loss: Annotated[Loss, Option("eq. 8 relative to the count, or as printed")] = "relative",
) -> Method:
    """Checks the data counts that clients claim, in front of any method; alone, of fedavg.

    ``alpha_i = |w_i - w| / (eta |g_bar_i| n_i)`` (eq. 12) is held against what it is for honest clients of that size. A
    claim above it is replaced by an estimate, its client warned and, if it goes on, excluded until it has claimed what
    fits ten times in a row.
    """
    assert isinstance(method, Method)  # the registry has made one of a name
    if paper:
        for what, asked, usual, printed in (
            ("factor", factor, "branch", "branch"),
            ("prior", prior, "cohort", "network"),
            ("evidence", evidence, "both", "report"),
            ("estimate", estimate, "prior", "report"),
            ("branch_loss", branch_loss, "relative", "printed"),
        ):
            if asked not in (usual, printed):
                raise CounterpoiseError(
                    f"feddua: paper means {what} {printed!r}, not {asked!r}; leave one of the two out."
                )
        factor, prior, evidence, memory, estimate = "branch", "network", "report", False, "report"
        branch_loss = "printed"
    options = Options(
        factor, prior, evidence, memory, estimate, threshold, patience, embedding, branch_rate, branch_loss
    )
    around = sum(part.name.startswith("counts") for part in method.trust)
    return method.adding(f"feddua:{method.name}", trust=counts(options, f"counts-{around + 1}" if around else "counts"))


def counts(options: Options, name: str = "counts") -> Part:
    """The trust step: what a client reports about its training, and the server's verdict."""
    learnable = options.branch and options.embedding == "learnable"

    # ------------------------------------------------------------ on the client

    def begin(client: Client) -> dict[str, Tensor]:
        memo = {
            "sum": torch.zeros_like(client.start),
            "before": torch.zeros_like(client.start),
            "from": client.start,
            "alphas": client.start.new_zeros(client.local.passes),
            "pass": torch.zeros_like(client.steps),
        }
        if options.branch:
            own = branch.embedding(client.index, client.start.dtype)
            if learnable:
                own = own + client.state["embedding"]
            memo |= {"branch": client.broadcast["branch"], "embedding": own}
        return memo

    def after_step(client: Client, step: Step) -> dict[str, Tensor]:
        return {**client.memo, "sum": client.memo["sum"] + step.gradient}

    def after_epoch(client: Client, w: Tensor) -> dict[str, Tensor]:
        """``rho = |w_end - w_start| / (eta |g_bar|)`` of this epoch, and its factor (eq. 12, or 7-11)."""
        memo = dict(client.memo)
        n = client.examples.to(w.dtype)
        mean = (memo["sum"] - memo["before"]) / (client.steps // client.local.passes)
        pace = client.lr * mean.norm()
        rho = torch.where(pace > 0, (w - memo["from"]).norm() / torch.where(pace > 0, pace, 1), 0)
        alpha = rho / n
        if options.branch:
            phi, own, batch = memo["branch"], memo["embedding"], client.local.batch
            printed = options.loss == "printed"
            phi, own = branch.learn(phi, own, rho, n, batch, options.rate, BRANCH_STEPS, learnable, printed)
            memo |= {"branch": phi, "embedding": own}
            alpha = branch.factor(phi, own, batch)
        here = torch.arange(client.local.passes, device=w.device) == memo["pass"]
        memo["alphas"] = torch.where(here, alpha, memo["alphas"])
        return memo | {"before": memo["sum"], "from": w, "pass": memo["pass"] + 1}

    def finish(client: Client, reply: Reply) -> Reply:
        memo = client.memo
        reports = {"gradient": memo["sum"].norm() / client.steps, "alphas": memo["alphas"]}
        if options.branch:
            reports["branch"] = memo["branch"]
        learned = memo["embedding"] - branch.embedding(client.index, client.start.dtype) if learnable else None
        return replace(reply, reports=reports, state={} if learned is None else {"embedding": learned})

    # ------------------------------------------------------------ on the server

    def server_state(start: Tensor) -> dict[str, Tensor]:
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
        return state | ({"branch": branch.first_branch(start)} if options.branch else {})

    def client_record(start: Tensor) -> dict[str, Tensor]:
        number = start.new_zeros((), dtype=torch.float64)
        kinds = number.new_zeros(len(options.kinds))
        return {"rounds": kinds, "warnings": number, "sums": kinds.clone()}

    def check(world: World) -> None:
        if world.local.steps is not None:
            raise CounterpoiseError(
                "feddua checks a client's count by the steps that it takes over its data; with local.steps they say nothing "
                "about the data. Set local.epochs instead."
            )
        if options.rehearses and world.proxy_size < 2 * world.local.batch:
            raise CounterpoiseError(
                f"feddua with prior={options.prior!r} needs a proxy set of at least {2 * world.local.batch} samples (two batches) on "
                f"the server, and it has {world.proxy_size}. Load the federation with proxy=1000 (in a configuration data.proxy = "
                "1000), or choose prior='cohort' without paper."
            )
        if not linear(world.local):
            log.warning(
                "feddua: under this optimizer the length of an update says little about the count. Verdicts are recorded; "
                "no claim is corrected and no client excluded."
            )

    return Part(
        name,
        server_state=server_state,
        client_record=client_record,
        client_state=(lambda start: {"embedding": start.new_zeros(branch.SIZE)}) if learnable else None,
        when_lost="What the client had learned of its embedding is forgotten." if learnable else "",
        begin=begin,
        after_step=after_step,
        after_epoch=after_epoch,
        finish=finish,
        broadcast=(lambda state: {"branch": state["branch"]}) if options.branch else None,
        apply=lambda round: judged(round, options, name),
        check=check,
    )
