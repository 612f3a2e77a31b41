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
import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Action, Client, Method, Part, Reply, Round, Step, Verdict, World
from counterpoise.methods.feddua import branch
from counterpoise.methods.feddua.evidence import (
    Points,
    consistency,
    displacement,
    factors,
    linear,
    measure,
    prior_line,
    report,
    solved,
)
from counterpoise.methods.feddua.sequential import weigh_up
from counterpoise.methods.registry import METHODS
from counterpoise.registry import Option, Paper

__all__ = ["feddua"]

log = logging.getLogger(__name__)

PAPER = Paper(
    "Local Data Quantity-Aware Weighted Averaging for Federated Learning with Dishonest Clients", "Wu, Jin, Hao, Yu"
)

Factor = Literal["branch", "direct"]
Prior = Literal["proxy", "cohort"]
Evidence = Literal["report", "displacement", "both"]
Estimate = Literal["prior", "report"]
Embedding = Literal["fixed", "learnable"]

_FEWEST = 5
"""Clients that must have been seen before a claim is judged."""
_REMEMBERED = 128
"""Points of recent rounds that the fits use beside the cohort's own."""
_REHEARSE_EVERY = 10
"""Rounds after which the server trains on its proxy set again."""
_LADDER = 8
"""Sizes at which it does."""
_BRANCH_STEPS = 10
"""Steps of eq. 11 after an epoch."""


@METHODS.register("feddua", group="trust", paper=PAPER, wraps="method")
def feddua(
    method: Method | str = "fedavg",
    factor: Annotated[
        Factor, Option("the adjustment factor: predicted by the quantity-aware branch (eq. 7), or computed (eq. 12)")
    ] = "branch",
    prior: Annotated[
        Prior,
        Option("where honest factors are known from: the server's training on its proxy set, or the cohort's majority"),
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
        bool, Option("the paper's own combination: branch, proxy, report, estimate by report, no memory")
    ] = False,
) -> Method:
    """Checks the data counts that clients claim, in front of any method; alone, of fedavg.

    ``alpha_i = |w_i - w| / (eta |g_bar_i| n_i)`` (eq. 12) is held against what it is for honest clients of that size. A
    claim outside is replaced by an estimate, its client warned and, if it goes on, excluded.
    """
    assert isinstance(method, Method)  # the registry has made one of a name
    if paper:
        factor, prior, evidence, memory, estimate = "branch", "proxy", "report", False, "report"
    options = Options(factor, prior, evidence, memory, estimate, threshold, patience, embedding, branch_rate)
    around = sum(part.name.startswith("counts") for part in method.trust)
    return method.adding(f"feddua:{method.name}", trust=counts(options, f"counts-{around + 1}" if around else "counts"))


@dataclass(frozen=True)
class Options:
    """The options of `feddua`."""

    factor: Factor
    prior: Prior
    evidence: Evidence
    memory: bool
    estimate: Estimate
    threshold: float
    patience: int
    embedding: Embedding
    rate: float

    @property
    def branch(self) -> bool:
        return self.factor == "branch"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of evidence. Under the branch a report is held against itself too (eq. 6)."""
        own = ("report", "consistency") if self.branch else ("report",)
        return {"report": own, "displacement": ("displacement",), "both": (*own, "displacement")}[self.evidence]


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
            phi, own = memo["branch"], memo["embedding"]
            for _ in range(_BRANCH_STEPS):
                phi, moved = branch.learn(phi, own, rho, n, client.local.batch, options.rate)
                own = moved if learnable else own
            memo |= {"branch": phi, "embedding": own}
            alpha = branch.factor(phi, own, client.local.batch)
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
            "recent": start.new_full((_REMEMBERED, columns), torch.inf, dtype=torch.float64),
            "ids": start.new_full((_REMEMBERED,), -1, dtype=torch.int64),
            "line": start.new_full((2,), torch.inf, dtype=torch.float64),
        }
        return state | ({"branch": branch.first_branch(start)} if options.branch else {})

    def client_record(start: Tensor) -> dict[str, Tensor]:
        number = start.new_zeros((), dtype=torch.float64)
        return {"rounds": number, "warnings": number.clone(), "sums": number.new_zeros(len(options.kinds))}

    def check(world: World) -> None:
        if world.local.steps is not None:
            raise CounterpoiseError(
                "feddua checks a client's count by the steps that it takes over its data; with local.steps they say nothing "
                "about the data. Set local.epochs instead."
            )
        if options.prior == "proxy" and "report" in options.kinds and world.proxy_size < 2 * world.local.batch:
            raise CounterpoiseError(
                f"feddua with prior='proxy' needs a proxy set of at least {2 * world.local.batch} samples (two batches) on "
                f"the server, and it has {world.proxy_size}. Load the federation with proxy=1000, or choose prior='cohort'."
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


# ---------------------------------------------------------------- verdicts


def judged(round: Round, options: Options, name: str) -> Round:
    """The round with verdicts, with the counts that follow from them, without those excluded (Algorithm 1, 10-16)."""
    cohort, world, state, records = round.cohort, round.world, dict(round.state), dict(round.records)
    kinds, local, columns = options.kinds, world.local, len(Points._fields)
    known = state["ids"] >= 0
    recent = state["recent"][known]
    mine = measure(cohort, world, round.reports, options.branch)
    pooled = Points(*(torch.cat(two) for two in zip(recent[:, :columns].unbind(1), mine, strict=True)))
    if options.prior == "proxy" and "report" in kinds:
        if world.round % _REHEARSE_EVERY == 1 or not bool(state["line"].isfinite().all()):
            state["line"] = torch.stack(rehearsed(world, options, name))
        prior = (state["line"][0], state["line"][1])
    else:
        prior = prior_line(pooled, local)
    # A count follows from rho, whatever the branch has made of it.
    own = prior_line(pooled._replace(alpha=pooled.rho - pooled.n), local) if options.prior == "cohort" else prior

    streams = []
    if "report" in kinds:
        streams.append(report(pooled, mine, prior, local))
    if "consistency" in kinds:
        streams.append(consistency(pooled, mine, local))
    if "displacement" in kinds:
        streams.append(displacement(pooled, mine, local))
    error, floor = torch.stack([s.error for s in streams], dim=1), torch.stack([s.floor for s in streams], dim=1)
    total = torch.stack([s.spread for s in streams])
    rounds = records["rounds"] + 1 if options.memory else torch.ones_like(records["rounds"])
    weighed = weigh_up(error, total, floor, rounds, records["sums"], recent[:, columns:], options.threshold)
    # An overclaim that one kind shows stands, or a report forged past the claim would hide what the update says.
    over = (weighed.z > options.threshold).any(1, keepdim=True)
    which = torch.where(over, weighed.z, weighed.z.abs()).argmax(1, keepdim=True)
    z = weighed.z.gather(1, which)[:, 0]

    seen = set(state["ids"][known].tolist()) | set(cohort.ids)
    enough = len(seen) >= _FEWEST
    rejected = (z.abs() > options.threshold) & enough
    records |= {"rounds": records["rounds"] + 1, "warnings": records["warnings"] + rejected}
    records |= {"sums": weighed.sums} if options.memory else {}
    barred = (records["warnings"] > options.patience) & linear(local)

    # The report names a count for this round; the update only one that is right on the average.
    by_update = which[:, 0] == len(kinds) - 1 if kinds[-1] == "displacement" else torch.zeros_like(rejected)
    told = mine.rho - factors(round.reports) if options.estimate == "report" else solved(mine.rho, own, local)
    shown = mine.n - weighed.average[:, -1]
    estimated = torch.where(by_update | ~told.isfinite(), shown, told).exp()
    claimed = cohort.examples.double()
    largest = claimed[~rejected].max() if bool((~rejected).any()) else claimed.min()
    # Who claims too little is raised at most to the largest count believed: a forged report must not buy weight.
    believed = torch.where(
        z > 0, torch.minimum(estimated, claimed), torch.maximum(torch.minimum(estimated, largest), claimed)
    )
    corrected = rejected & estimated.isfinite() & linear(local)
    verified = torch.where(corrected, believed.round().clamp(min=1), claimed)

    if options.branch:
        weights = torch.where(barred, 0, verified)
        weights = weights / weights.sum().clamp(min=1)
        state["branch"] = torch.where(
            barred.all(), state["branch"], weights.to(state["branch"]) @ round.reports["branch"]
        )
    good = ~rejected & ~barred
    rows = torch.cat([torch.stack(mine, dim=1), weighed.drift], dim=1)[good]
    rows = torch.where(rows.isfinite(), rows, torch.inf)  # what is missing: NaN would not equal itself
    ids = torch.tensor(cohort.ids, device=rows.device)[good]
    state["recent"] = torch.cat([state["recent"], rows])[-_REMEMBERED:]
    state["ids"] = torch.cat([state["ids"], ids])[-_REMEMBERED:]

    width = torch.where(by_update, 2 * total[-1], 0)
    verdicts = {}
    for i, client in enumerate(cohort.ids):
        action: Action = "accepted"
        if barred[i]:
            action = "excluded"
        elif rejected[i]:
            action = "corrected" if corrected[i] else "warned"
        verdicts[client] = _verdict(
            float(claimed[i]),
            float(estimated[i]),
            float(z[i]) if enough else None,
            float(width[i]),
            local.batch,
            action,
        )
    return round.but(
        cohort=replace(cohort, examples=verified.to(cohort.examples)),
        state=state,
        records=records,
        verdicts=verdicts | {c: v for c, v in round.verdicts.items() if v.action != "accepted"},  # of one further in
        excluded={client: verdict.reason for client, verdict in verdicts.items() if verdict.action == "excluded"},
    )


def rehearsed(world: World, options: Options, name: str) -> tuple[Tensor, Tensor]:
    """The prior's line from the server's own training at a ladder of sizes, from the present model (section IV-B)."""
    batch, most = world.local.batch, world.proxy_size
    sizes = torch.logspace(math.log10(batch), math.log10(most), _LADDER).round().long().clamp(1, most).tolist()
    cohort = world.rehearse(sizes)
    return prior_line(measure(cohort, world, cohort.reports[name], options.branch), world.local)


def _verdict(claimed: float, estimated: float, z: float | None, width: float, batch: int, action: Action) -> Verdict:
    """The row of the record; `width` is the half interval of a count seen in the update, in log n."""
    if not math.isfinite(estimated):
        return Verdict(claimed, None, None, None, z, action, "it did not move")
    steps = max(math.ceil(round(estimated, 6) / batch), 1)
    low, high = float((steps - 1) * batch), float(steps * batch)
    if width:
        low, high = estimated * math.exp(-width), estimated * math.exp(width)
    if z is None:
        reason = f"fewer than {_FEWEST} clients have been seen"
    elif action == "accepted":
        reason = ""
    else:
        what = "the update it sent" if width else "what it reports of its training"
        often = "it was warned too often; now " if action == "excluded" else ""
        reason = f"{often}it claims {claimed:g} samples; {what} speaks for {estimated:.3g}"
    return Verdict(claimed, estimated, low, high, z, action, reason)
