"""The server's verdicts on the counts that a cohort claims (Algorithm 1, lines 10-16).

`judge` collects everything into one `Hearing`, weighs the evidence, estimates the counts, and records the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from counterpoise.local import Local
from counterpoise.method import Round, Tensors
from counterpoise.methods.feddua.constants import (
    BRANCH_STEPS,
    COUNT_ROUNDING,
    FEWEST_CLIENTS,
    LONGEST_STEP,
    REMEMBERED,
)
from counterpoise.methods.feddua.evidence import (
    Points,
    Stream,
    check_consistency,
    check_displacement,
    check_report,
    measure,
    read_factors,
)
from counterpoise.methods.feddua.options import Options
from counterpoise.methods.feddua.prior import Prior, count_steps, is_linear, solve
from counterpoise.methods.feddua.record import Finding, write_verdicts
from counterpoise.methods.feddua.rehearsal import choose_priors, is_due, rehearse
from counterpoise.methods.feddua.sequential import Weighed, update_warnings, weigh_up

__all__ = ["Hearing", "average_branch", "believe", "collect", "estimate", "judge", "record", "weigh"]


class Pool(NamedTuple):
    """What claims are compared with: recent rounds and this one, without excluded clients."""

    points: Points
    drifts: Tensor
    """How far recent errors lay from their client's earlier average, ``[M, K]``."""
    many: bool
    """Whether enough clients were seen to be a measure of one another."""


@dataclass(frozen=True)
class Hearing:
    """One round's claims and everything that judges them, on the CPU."""

    options: Options
    local: Local
    ids: Tensor
    claimed: Tensor
    """The claimed counts ``[C]``."""
    reports: Tensors
    state: Tensors
    records: Tensors
    mine: Points
    """The points of this cohort."""
    pool: Pool
    prior: Prior
    """What factors are compared with."""
    counting: Prior
    """What counts are solved from."""

    @property
    def enough(self) -> bool:
        """Whether claims are judged. Few clients are no measure of one another, but the server's own training is."""
        return self.pool.many or self.options.witnessed


class Decision(NamedTuple):
    """The evidence that decides about each client's claim ``[C]``; the fields are those of `Finding`."""

    z: Tensor
    estimated: Tensor
    low: Tensor
    high: Tensor
    by_update: Tensor
    by_memory: Tensor


def judge(round: Round, options: Options, name: str) -> Round:
    """Judge the round's claims; return it with verdicts, verified counts and without excluded clients."""
    hearing = collect(round, options, name)
    weighed = weigh(hearing)
    finding = estimate(hearing, weighed)
    return record(round, hearing, weighed, finding)


# ---------------------------------------------------------------- collect


def collect(round: Round, options: Options, name: str) -> Hearing:
    """Collect what clients sent, what the server remembers, and the prior; rehearse if it is time."""
    cohort, world, local = round.cohort, round.world, round.world.local
    state, records, reports = (_move("cpu", tensors) for tensors in (round.state, round.records, round.reports))
    ids, barred = torch.tensor(cohort.ids), _exclude(records["warnings"], options, local)
    mine = measure(cohort, world, reports, options.branch, ~barred)
    pool = _pool(state, mine, ids, barred)
    if is_due(state, options, world.round):
        state |= rehearse(world, options, name)
    prior, counting = choose_priors(state, pool.points, options, local)
    claimed = cohort.examples.cpu().double()
    return Hearing(options, local, ids, claimed, reports, state, records, mine, pool, prior, counting)


def _pool(state: Tensors, mine: Points, ids: Tensor, barred: Tensor) -> Pool:
    kept, columns = state["ids"] >= 0, len(Points._fields)
    recent = state["recent"][kept]
    old = recent[:, :columns].unbind(1)
    points = Points(*(torch.cat([before, now[~barred]]) for before, now in zip(old, mine, strict=True)))
    seen = set(state["ids"][kept].tolist()) | set(ids[~barred].tolist())
    return Pool(points, recent[:, columns:], len(seen) >= FEWEST_CLIENTS)


def _move(device: torch.device | str, tensors: Tensors) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _exclude(warnings: Tensor, options: Options, local: Local) -> Tensor:
    return (warnings.ceil() > options.patience) & is_linear(local)


# ---------------------------------------------------------------- weigh


def weigh(hearing: Hearing) -> Weighed:
    """Weigh each kind of evidence against each claim, in this round and over the client's rounds."""
    options, records = hearing.options, hearing.records
    streams = [_check(hearing, kind) for kind in options.kinds]
    error, floor = torch.stack([s.error for s in streams], dim=1), torch.stack([s.floor for s in streams], dim=1)
    total = torch.stack([s.spread for s in streams])
    rounds = records["rounds"] + 1 if options.memory else torch.ones_like(records["rounds"])
    return weigh_up(error, total, floor, rounds, records["sums"], hearing.pool.drifts, options.threshold)


def _check(hearing: Hearing, kind: str) -> Stream:
    pooled, mine, local = hearing.pool.points, hearing.mine, hearing.local
    if kind == "report":
        return check_report(pooled, mine, hearing.prior, local, hearing.state.get("witnesses"))
    return (check_consistency if kind == "consistency" else check_displacement)(pooled, mine, local)


# ---------------------------------------------------------------- estimate


def estimate(hearing: Hearing, weighed: Weighed) -> Finding:
    """Decide which claims are too large or too small, who is excluded, and which counts the round goes on with."""
    options, local, claimed, enough = hearing.options, hearing.local, hearing.claimed, hearing.enough
    decision, known = _decide(hearing, weighed), weighed.error.isfinite().any(1)
    over = (decision.z > options.threshold) & (hearing.mine.n > 0) & enough
    under = (decision.z < -options.threshold) & enough
    fits = known & ~over & ~under
    warnings = update_warnings(hearing.records["warnings"], over, fits & enough, options.patience)
    excluded = _exclude(warnings, options, local)
    taken, verified = _take_estimate(hearing, decision), claimed
    if enough and is_linear(local):
        heard, raising = ~excluded, options.estimate == "report"
        verified = believe(claimed, taken, decision.z, (over | under) & heard, known & heard, raising)
    return Finding(*decision, over, under, excluded, claimed, verified, taken, warnings)


def _decide(hearing: Hearing, weighed: Weighed) -> Decision:
    """Choose the kind of evidence that decides about each claim, and the counts that it suggests.

    An over-claim that one kind shows stands. Otherwise a report forged past the claim would hide the other kinds.
    """
    options, mine, batch = hearing.options, hearing.mine, hearing.local.batch
    usable = torch.tensor([hearing.pool.many or kind == "report" for kind in options.kinds])
    scores = torch.where(usable, weighed.z, 0)
    over = (scores > options.threshold).any(1, keepdim=True)
    which = torch.where(over, scores, scores.abs()).argmax(1, keepdim=True)
    z, error, scale, by_memory = (
        t.gather(1, which)[:, 0] for t in (scores, weighed.error, weighed.scale, weighed.by_memory)
    )
    by_update = torch.tensor([kind == "displacement" for kind in options.kinds])[which[:, 0]]
    # Exactly the counts that evidence of this size lets stand.
    own, wide = mine.n - error, options.threshold * scale
    low, high = (own - wide).exp(), (own + wide).exp()
    # A report shows steps, so counts with as many steps look the same, unless the factor decides against rho.
    told = solve(mine.rho, hearing.counting, hearing.local)
    steps = count_steps(told, hearing.local).clamp(min=1)
    least, most, claim = (steps - 1) * batch, steps * batch, mine.n.exp()
    agrees = torch.where(
        z > options.threshold,
        claim > most + COUNT_ROUNDING,
        (z >= -options.threshold) | (claim < least + COUNT_ROUNDING),
    )
    by_steps = ~by_update & ~by_memory & told.isfinite() & agrees
    estimated = torch.where(by_steps, told, own).exp().clamp(min=1)
    low, high = torch.where(by_steps, least, low), torch.where(by_steps, most, high)
    return Decision(z, estimated, low, high.clamp(min=1), by_update, by_memory)


def _take_estimate(hearing: Hearing, decision: Decision) -> Tensor:
    """Take the estimate for a correction: the decision's, or line 13 as printed, with the very factor in question."""
    if hearing.options.estimate != "report":
        return decision.estimated
    printed = (hearing.mine.rho - read_factors(hearing.reports)).exp().clamp(min=1)
    return torch.where(decision.by_update | ~printed.isfinite(), decision.estimated, printed)


def believe(claimed: Tensor, estimated: Tensor, z: Tensor, rejected: Tensor, known: Tensor, raising: bool) -> Tensor:
    """Choose the counts to go on with ``[C]``: a rejected one is at most the claim and the largest claim that stands.

    Too small a claim stands, because a forged report must not buy weight. `raising` is line 13 as printed: it takes the
    estimate instead, up to the largest claim that stands. That largest claim also caps claims without evidence.
    """
    standing = known & ~rejected
    largest = claimed[standing].max() if bool(standing.any()) else claimed.min()
    guess = torch.where(estimated.isfinite(), estimated, claimed).round().clamp(min=1)
    lowered = torch.minimum(torch.minimum(guess, claimed), largest)
    raised = torch.maximum(torch.minimum(guess, largest), claimed) if raising else claimed
    silent = torch.minimum(claimed, largest) if bool(standing.any()) else claimed
    return torch.where(rejected, torch.where(z > 0, lowered, raised), torch.where(known, claimed, silent))


# ---------------------------------------------------------------- record


def record(round: Round, hearing: Hearing, weighed: Weighed, finding: Finding) -> Round:
    """Record the verdicts, pass on verified counts, and remember the claims that stand."""
    cohort, options, device = round.cohort, hearing.options, round.cohort.updates.device
    state = {**hearing.state, **_remember(hearing, weighed, finding.stands)}
    if options.branch:
        counts = finding.verified * finding.stands
        state["branch"] = average_branch(
            state["branch"], hearing.reports["branch"], counts, options, hearing.local.passes
        )
    records = {**hearing.records, "warnings": finding.warnings}
    if options.memory:
        records |= {"rounds": records["rounds"] + weighed.kept, "sums": weighed.sums}
    ours = write_verdicts(
        cohort.ids, finding, patience=options.patience, enough=hearing.enough, by_counts=round.by_counts
    )
    inner = {client: verdict for client, verdict in round.verdicts.items() if verdict.action != "accepted"}
    return round.noting(alpha=hearing.mine.alpha.exp().to(device)).but(
        cohort=replace(cohort, examples=finding.verified.to(cohort.examples)),
        state=_move(device, state),
        records=_move(device, records),
        verdicts=ours | inner,
        excluded={client: verdict.reason for client, verdict in ours.items() if verdict.action == "excluded"},
    )


def _remember(hearing: Hearing, weighed: Weighed, stands: Tensor) -> dict[str, Tensor]:
    rows = torch.cat([torch.stack(hearing.mine, dim=1), weighed.drift], dim=1)[stands]
    rows = torch.where(rows.isfinite(), rows, torch.inf)  # marks what is missing; NaN would not equal itself
    return {
        "recent": torch.cat([hearing.state["recent"], rows])[-REMEMBERED:],
        "ids": torch.cat([hearing.state["ids"], hearing.ids[stands]])[-REMEMBERED:],
    }


def average_branch(phi: Tensor, sent: Tensor, counts: Tensor, options: Options, passes: int) -> Tensor:
    """Average the branch's weights by verified counts. Nobody moves them further than honest steps could."""
    if not bool(counts.sum() > 0):
        return phi
    moves = sent - phi
    reach = options.branch_rate * LONGEST_STEP * BRANCH_STEPS * passes
    moves = moves * (reach / torch.linalg.vector_norm(moves, dim=1, keepdim=True).clamp(min=reach))
    mean: Tensor = (counts / counts.sum()).to(phi) @ moves
    return phi + mean
