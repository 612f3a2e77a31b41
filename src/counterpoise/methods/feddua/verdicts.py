"""The server's verdicts on a cohort's claims (Algorithm 1, lines 10-16)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from counterpoise.local import Local
from counterpoise.method import Round, Tensors, World
from counterpoise.methods.feddua import branch
from counterpoise.methods.feddua.evidence import Points, Stream, consistency, displacement, factors, measure, report
from counterpoise.methods.feddua.options import BRANCH_STEPS, LADDER, REMEMBERED, Options
from counterpoise.methods.feddua.prior import Line, Network, Prior, fit_line, fit_network, linear, solved
from counterpoise.methods.feddua.record import FEWEST, Counts, Finding, verdicts
from counterpoise.methods.feddua.sequential import Weighed, forgiven, weigh_up

__all__ = ["averaged", "believed", "judged", "rehearsed"]

_REHEARSE_EVERY = 10
"""Rounds after which the server trains on its proxy set again."""


class _Known(NamedTuple):
    """What claims are held against."""

    pooled: Points
    """Points of recent rounds and this one's, but of those excluded."""
    drifts: Tensor
    many: bool
    """Whether enough clients were seen to be a measure of one another."""


def judged(round: Round, options: Options, name: str) -> Round:
    """The round with verdicts, with the counts that follow from them, without those excluded."""
    cohort, world, device = round.cohort, round.world, round.cohort.updates.device
    state, records, reports = (_on("cpu", tensors) for tensors in (round.state, round.records, round.reports))
    local, ids = world.local, torch.tensor(cohort.ids)
    barred = _excluded(records["warnings"], options, local)
    mine = measure(cohort, world, reports, options.branch, ~barred)
    known = _known(state, mine, ids, barred)
    if options.rehearses and (world.round % _REHEARSE_EVERY == 1 or not _rehearsed(state)):
        state |= rehearsed(world, options, name)
    prior, counting = _priors(state, known.pooled, options, local)
    weighed = _weighed(mine, known, prior, state.get("witnesses"), records, options, local)
    there = weighed.error.isfinite()
    told = solved(mine.rho, counting, local)
    finding = _found(weighed, mine, told, known.many, options, local)

    # Too few clients are no measure of one another; the server's own training is one for reports.
    enough = known.many or options.witnessed
    over = (finding.z > options.threshold) & (mine.n > 0) & enough
    under = (finding.z < -options.threshold) & enough
    fits = there.any(1) & ~over & ~under
    records["warnings"] = forgiven(records["warnings"], over, fits & enough, options.patience)
    records |= {"rounds": records["rounds"] + weighed.kept, "sums": weighed.sums} if options.memory else {}
    excluded = _excluded(records["warnings"], options, local)
    good = ~over & ~under & ~excluded

    claimed = cohort.examples.cpu().double()
    estimated, raising = finding.estimated, options.estimate == "report"
    if raising:  # line 13 as printed, with the very factor in question
        printed = (mine.rho - factors(reports)).exp().clamp(min=1)
        estimated = torch.where(finding.by_update | ~printed.isfinite(), estimated, printed)
    verified = claimed
    if enough and linear(local):
        heard = ~excluded
        verified = believed(claimed, estimated, finding.z, (over | under) & heard, there.any(1) & heard, raising)
    if options.branch:
        state["branch"] = averaged(state["branch"], reports["branch"], verified * good, options, local.passes)
    rows = torch.cat([torch.stack(mine, dim=1), weighed.drift], dim=1)[good]
    rows = torch.where(rows.isfinite(), rows, torch.inf)  # what is missing: NaN would not equal itself
    state["recent"] = torch.cat([state["recent"], rows])[-REMEMBERED:]
    state["ids"] = torch.cat([state["ids"], ids[good]])[-REMEMBERED:]

    ours = verdicts(
        cohort.ids,
        finding._replace(over=over, under=under, excluded=excluded),
        Counts(claimed, verified, estimated, records["warnings"]),
        patience=options.patience,
        enough=enough,
        by_counts=round.by_counts,
    )
    return round.noting(alpha=mine.alpha.exp().to(device)).but(
        cohort=replace(cohort, examples=verified.to(cohort.examples)),
        state=_on(device, state),
        records=_on(device, records),
        verdicts=ours | {c: v for c, v in round.verdicts.items() if v.action != "accepted"},  # of one further in
        excluded={client: verdict.reason for client, verdict in ours.items() if verdict.action == "excluded"},
    )


def _on(device: torch.device | str, tensors: Tensors) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _excluded(warnings: Tensor, options: Options, local: Local) -> Tensor:
    return (warnings.ceil() > options.patience) & linear(local)


def _known(state: Tensors, mine: Points, ids: Tensor, barred: Tensor) -> _Known:
    kept, columns = state["ids"] >= 0, len(Points._fields)
    recent = state["recent"][kept]
    old = recent[:, :columns].unbind(1)
    pooled = Points(*(torch.cat([before, now[~barred]]) for before, now in zip(old, mine, strict=True)))
    seen = set(state["ids"][kept].tolist()) | set(ids[~barred].tolist())
    return _Known(pooled, recent[:, columns:], len(seen) >= FEWEST)


# ---------------------------------------------------------------- what speaks against each claim


def _rehearsed(state: Tensors) -> bool:
    return all(bool(state[name].isfinite().all()) for name in ("line", "network") if name in state)


def _priors(state: Tensors, pooled: Points, options: Options, local: Local) -> tuple[Prior, Prior]:
    """What factors are held against, and what counts are solved from."""
    if options.rehearses:
        ours: Prior = Line(*state["line"].unbind())
        if options.prior == "network":
            ours = Network(state["network"])
        return ours, ours
    prior = fit_line(pooled.n, pooled.alpha, local)
    # A count follows from rho, whatever the branch has made of it.
    return prior, fit_line(pooled.n, pooled.rho - pooled.n, local) if options.branch else prior


def _weighed(
    mine: Points,
    known: _Known,
    prior: Prior,
    witnesses: Tensor | None,
    records: Tensors,
    options: Options,
    local: Local,
) -> Weighed:
    def stream(kind: str) -> Stream:
        if kind == "report":
            return report(known.pooled, mine, prior, local, witnesses)
        return (consistency if kind == "consistency" else displacement)(known.pooled, mine, local)

    streams = [stream(kind) for kind in options.kinds]
    error, floor = torch.stack([s.error for s in streams], dim=1), torch.stack([s.floor for s in streams], dim=1)
    total = torch.stack([s.spread for s in streams])
    rounds = records["rounds"] + 1 if options.memory else torch.ones_like(records["rounds"])
    return weigh_up(error, total, floor, rounds, records["sums"], known.drifts, options.threshold)


def _found(weighed: Weighed, mine: Points, told: Tensor, many: bool, options: Options, local: Local) -> Finding:
    """The kind of evidence that decides about each client's claim, and the counts that it speaks for.

    An over-claim that one kind shows stands, or a report forged past the claim would hide the others.
    """
    usable = torch.tensor([many or kind == "report" for kind in options.kinds])
    scores = torch.where(usable, weighed.z, 0)
    over = (scores > options.threshold).any(1, keepdim=True)
    which = torch.where(over, scores, scores.abs()).argmax(1, keepdim=True)
    z, error, scale, by_memory = (
        t.gather(1, which)[:, 0] for t in (scores, weighed.error, weighed.scale, weighed.by_memory)
    )
    by_update = torch.tensor([kind == "displacement" for kind in options.kinds])[which[:, 0]]
    # The counts that evidence of this size lets stand, and no others.
    own, wide = mine.n - error, options.threshold * scale
    low, high = (own - wide).exp(), (own + wide).exp()
    # A report tells steps, so counts of as many steps look the same. It does not where the factor speaks and not rho.
    steps = torch.ceil(told.exp() / local.batch - 1e-9).clamp(min=1)
    least, most, claim = (steps - 1) * local.batch, steps * local.batch, mine.n.exp()
    beside = torch.where(z > options.threshold, claim > most + 1e-6, (z >= -options.threshold) | (claim < least + 1e-6))
    by_steps = ~by_update & ~by_memory & told.isfinite() & beside
    estimated = torch.where(by_steps, told, own).exp().clamp(min=1)
    low, high = torch.where(by_steps, least, low), torch.where(by_steps, most, high)
    none = torch.zeros_like(by_memory)
    return Finding(z, estimated, low, high.clamp(min=1), by_update, by_memory, none, none, none)


# ---------------------------------------------------------------- what follows


def believed(claimed: Tensor, estimated: Tensor, z: Tensor, rejected: Tensor, known: Tensor, raising: bool) -> Tensor:
    """The counts to go on with ``[C]``: no rejected one above what was claimed, nor above the largest that stands.

    A claim of too little stands, as a forged report must not buy weight; `raising` is line 13 as printed, which takes the
    estimate then too, up to the largest that stands. A claim of which nothing is known is held to the largest as well.
    """
    standing = known & ~rejected
    largest = claimed[standing].max() if bool(standing.any()) else claimed.min()
    guess = torch.where(estimated.isfinite(), estimated, claimed).round().clamp(min=1)
    lowered = torch.minimum(torch.minimum(guess, claimed), largest)
    raised = torch.maximum(torch.minimum(guess, largest), claimed) if raising else claimed
    silent = torch.minimum(claimed, largest) if bool(standing.any()) else claimed
    return torch.where(rejected, torch.where(z > 0, lowered, raised), torch.where(known, claimed, silent))


def averaged(phi: Tensor, sent: Tensor, counts: Tensor, options: Options, passes: int) -> Tensor:
    """The branch's weights, averaged by verified counts; nobody moves them further than honest steps could."""
    if not bool(counts.sum() > 0):
        return phi
    moves = sent - phi
    reach = options.rate * branch.LONGEST * BRANCH_STEPS * passes
    moves = moves * (reach / torch.linalg.vector_norm(moves, dim=1, keepdim=True).clamp(min=reach))
    mean: Tensor = (counts / counts.sum()).to(phi) @ moves
    return phi + mean


def rehearsed(world: World, options: Options, name: str) -> dict[str, Tensor]:
    """The prior from the server's own training at a ladder of sizes, from the present model (section IV-B).

    And how far each of them lies off it: they are honest, however few the clients are.
    """
    batch, most, local = world.local.batch, world.proxy_size, world.local
    sizes = torch.logspace(math.log10(batch), math.log10(most), LADDER).round().long().clamp(1, most).tolist()
    cohort = world.rehearse(sizes)
    everyone = torch.ones(len(cohort), dtype=torch.bool)
    points = measure(cohort, world, _on("cpu", cohort.reports[name]), options.branch, everyone)
    prior: Prior = (line := fit_line(points.n, points.alpha, local))
    found = {"line": torch.stack(line)}
    if options.prior == "network":
        prior = network = fit_network(points.n, points.alpha, local, world.key)
        found["network"] = network.weights
    if options.witnessed:
        errors = report(points, points, prior, local).error
        found["witnesses"] = torch.where(errors.isfinite(), errors, torch.inf)
    return found
