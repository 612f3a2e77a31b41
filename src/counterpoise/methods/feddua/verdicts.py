"""The server's verdicts on a cohort's claims (Algorithm 1, lines 10-16)."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from counterpoise.method import Action, Round, Tensors, Verdict, World
from counterpoise.methods.feddua import branch
from counterpoise.methods.feddua.evidence import (
    Points,
    Stream,
    consistency,
    displacement,
    factors,
    linear,
    measure,
    prior_line,
    report,
    solved,
)
from counterpoise.methods.feddua.options import BRANCH_STEPS, LADDER, REMEMBERED, Options
from counterpoise.methods.feddua.sequential import weigh_up

__all__ = ["averaged", "believed", "judged", "rehearsed"]

_FEWEST = 5
"""Clients that must have been seen before a claim is judged."""
_REHEARSE_EVERY = 10
"""Rounds after which the server trains on its proxy set again."""


def judged(round: Round, options: Options, name: str) -> Round:
    """The round with verdicts, with the counts that follow from them, without those excluded."""
    cohort, world, device = round.cohort, round.world, round.cohort.updates.device
    state, records, reports = (_on("cpu", tensors) for tensors in (round.state, round.records, round.reports))
    local, columns = world.local, len(Points._fields)
    barred = (records["warnings"] > options.patience) & linear(local)
    # What is known: the points of recent rounds and this one's, but of those already excluded.
    ids = torch.tensor(cohort.ids)
    kept = state["ids"] >= 0
    recent = state["recent"][kept]
    mine = measure(cohort, world, reports, options.branch, ~barred)
    pooled = Points(
        *(torch.cat([old, new[~barred]]) for old, new in zip(recent[:, :columns].unbind(1), mine, strict=True))
    )
    many = len(set(state["ids"][kept].tolist()) | set(ids[~barred].tolist())) >= _FEWEST
    enough = many or options.witnessed
    if options.rehearses:
        if world.round % _REHEARSE_EVERY == 1 or not bool(state["line"].isfinite().all()):
            line, errors = rehearsed(world, options, name)
            state |= {"line": torch.stack(line)} | ({"witnesses": errors} if options.witnessed else {})
        prior = counting = (state["line"][0], state["line"][1])
    else:
        prior = prior_line(pooled, local)
        # A count follows from rho, whatever the branch has made of it.
        counting = prior_line(pooled._replace(alpha=pooled.rho - pooled.n), local) if options.branch else prior

    # What speaks against each claim.
    streams = [_stream(kind, pooled, mine, prior, state.get("witnesses"), world) for kind in options.kinds]
    error, floor = torch.stack([s.error for s in streams], dim=1), torch.stack([s.floor for s in streams], dim=1)
    total = torch.stack([s.spread for s in streams])
    there = error.isfinite()
    rounds = records["rounds"] + there if options.memory else torch.ones_like(records["rounds"])
    weighed = weigh_up(error, total, floor, rounds, records["sums"], recent[:, columns:], options.threshold)
    # Too few clients are no measure of one another; the server's own training is one for reports.
    usable = torch.tensor([many or kind == "report" for kind in options.kinds])
    scores = torch.where(usable, weighed.z, 0)
    # An overclaim that one kind of evidence shows stands, or a report forged past the claim would hide the others.
    over = (scores > options.threshold).any(1, keepdim=True)
    which = torch.where(over, scores, scores.abs()).argmax(1, keepdim=True)
    z = scores.gather(1, which)[:, 0]
    rejected = (z.abs() > options.threshold) & enough & ~barred

    # What count it speaks for: this round's, or where only the rounds together tell, the average's.
    told = mine.rho - factors(reports) if options.estimate == "report" else solved(mine.rho, counting, local)
    by_update = torch.tensor([kind == "displacement" for kind in options.kinds])[which[:, 0]]
    now = torch.where(by_update | ~told.isfinite(), mine.n - error.gather(1, which)[:, 0], told)
    always = mine.n - weighed.average.gather(1, which)[:, 0]
    blind = (z > options.threshold) & (now >= mine.n)
    if options.estimate == "report":
        blind &= by_update  # line 13 as printed believes the factor in question
    estimated = torch.where(blind, always, now).exp().clamp(min=1)
    claimed = cohort.examples.cpu().double()
    verified = claimed
    if enough and linear(local):
        verified = believed(claimed, estimated, z, rejected, there.any(1) & ~barred, options.estimate == "report")

    records |= {"warnings": records["warnings"] + rejected}
    records |= {"rounds": rounds, "sums": weighed.sums} if options.memory else {}
    excluded = (records["warnings"] > options.patience) & linear(local)
    good = ~rejected & ~excluded
    if options.branch:
        state["branch"] = averaged(state["branch"], reports["branch"], verified * good, options, local.passes)
    rows = torch.cat([torch.stack(mine, dim=1), weighed.drift], dim=1)[good]
    rows = torch.where(rows.isfinite(), rows, torch.inf)  # what is missing: NaN would not equal itself
    state["recent"] = torch.cat([state["recent"], rows])[-REMEMBERED:]
    state["ids"] = torch.cat([state["ids"], ids[good]])[-REMEMBERED:]

    wide = torch.where(by_update, 2 * torch.maximum(total, floor).gather(1, which)[:, 0], torch.nan)
    table = torch.stack([claimed, verified, estimated, z, wide, records["warnings"]], dim=1).tolist()
    verdicts: dict[int, Verdict] = {}
    for client, row, was_rejected, is_excluded in zip(
        cohort.ids, table, rejected.tolist(), excluded.tolist(), strict=True
    ):
        changed = row[0] != row[1]
        action: Action = "corrected" if changed else "warned" if was_rejected else "accepted"
        claim, _, guess, score, half, warnings = row
        verdicts[client] = _verdict(
            claim, guess, score, half, warnings, local.batch, "excluded" if is_excluded else action, enough
        )
    return round.noting(alpha=mine.alpha.exp().to(device)).but(
        cohort=replace(cohort, examples=verified.to(cohort.examples)),
        state=_on(device, state),
        records=_on(device, records),
        verdicts=verdicts | {c: v for c, v in round.verdicts.items() if v.action != "accepted"},  # of one further in
        excluded={client: verdict.reason for client, verdict in verdicts.items() if verdict.action == "excluded"},
    )


def _on(device: torch.device | str, tensors: Tensors) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


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


def rehearsed(world: World, options: Options, name: str) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The prior's line from the server's own training at a ladder of sizes, from the present model (section IV-B).

    And how far each of them lies off it: they are honest, however few the clients are.
    """
    batch, most = world.local.batch, world.proxy_size
    sizes = torch.logspace(math.log10(batch), math.log10(most), LADDER).round().long().clamp(1, most).tolist()
    cohort = world.rehearse(sizes)
    everyone = torch.ones(len(cohort), dtype=torch.bool)
    points = measure(cohort, world, _on("cpu", cohort.reports[name]), options.branch, everyone)
    line = prior_line(points, world.local)
    errors = report(points, points, line, world.local).error
    return line, torch.where(errors.isfinite(), errors, torch.inf)


def _stream(
    kind: str, pooled: Points, mine: Points, prior: tuple[Tensor, Tensor], witnesses: Tensor | None, world: World
) -> Stream:
    if kind == "report":
        return report(pooled, mine, prior, world.local, witnesses)
    return (consistency if kind == "consistency" else displacement)(pooled, mine, world.local)


def _verdict(
    claimed: float,
    estimated: float,
    z: float,
    wide: float,
    warnings: float,
    batch: int,
    action: Action,
    enough: bool,
) -> Verdict:
    """The row of the record; `wide` is the half interval in log n of a count seen in the update, NaN for a reported one."""
    reason, by_update = "", not math.isnan(wide)
    if not enough:
        reason = f"fewer than {_FEWEST} clients have been seen"
    elif action == "excluded":
        reason = f"it was warned {warnings:.0f} times of its claims"
    elif not math.isfinite(estimated):
        reason = "it did not move"
    elif action != "accepted":
        what = "the update it sent" if by_update else "what it reports of its training"
        reason = f"it claims {claimed:g} samples; {what} speaks for {estimated:.3g}"
    if not math.isfinite(estimated):
        return Verdict(claimed, None, None, None, None, action, reason)
    steps = max(math.ceil(round(estimated, 6) / batch), 1)
    low, high = float((steps - 1) * batch), float(steps * batch)
    if by_update:
        low, high = estimated * math.exp(-wide), estimated * math.exp(wide)
    return Verdict(claimed, estimated, low, high, z if enough else None, action, reason)
