"""A control variate for each client, kept by the server alone, with an estimated coefficient.

``y_i`` is the memory of client i: the mean gradient of its last round, before any correction. ``y_bar`` is their mean
over the clients seen. Client i steps along ``g - a (y_i - y_bar)``, which the server sends it, and the server adds
``(c - a) k_i (y_i - y_bar)`` to its update, with ``k_i = |a_i|_1 eta`` the distance that its optimiser carries it per
unit of gradient. FedAvg has c = 0, FedVARP c = 1 and a = 0, SCAFFOLD c = a = 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Client, Cohort, Part, Round, Step, Tensors, Verdict, World
from counterpoise.parts import trial
from counterpoise.parts.bounded import clip_rows
from counterpoise.parts.capped import cap_counts, check_cap

__all__ = ["Weights", "memory"]

_UNMOVED = "it does not apply the corrections that it is sent"

Weights = Literal["data", "uniform"]


def memory(
    coefficient: float | None = None,
    share: float | None = None,
    power: float = 0.5,
    weights: Weights = "data",
    most_count: float = 3.0,
    clip: float = 2.0,
    smoothing: float = 0.9,
    gate: bool = True,
    half: bool = False,
    bounds: trial.Bounds = trial.USUAL,
) -> Part:
    """Take out of each update what the client's last one predicts; put it before the parts that weigh and combine.

    The coefficient c is how much of what a client does is what it did: the regression coefficient of its mean gradient
    on its memory, both less y_bar, over the cohorts so far (exponential means with factor `smoothing`), between 0 and
    1. `coefficient` fixes it. Clients apply the share ``a = c (|S| / N)^power``, with c of the round before; `share`
    replaces the power. Without a local optimiser that is linear in the gradients, the memory is of displacements and
    the server applies all of it.

    Gradients are clipped to `clip` times the cohort's median length before they are remembered. y_bar weighs by the
    last counts, each at most `most_count` times its cohort's median, or equally. A client not yet seen has no
    correction, and a client that an earlier part excludes is forgotten.

    With `gate`, the server tests whether clients apply their corrections (`counterpoise.parts.trial`). It leaves out
    those that do not, and their memories do not count in y_bar. `bounds` are the numbers of these tests.

    With `half`, what is remembered is rounded to bfloat16, which takes half the room.
    """
    check_cap(most_count)
    sends = share != 0

    def apply(round: Round) -> Round:
        cohort, state, records = round.cohort, round.state, round.records
        apart, reach, bar = _apart(state, records), _reach(round), _mean(state)
        sent, steps = trial.doses(state["share"], records, bounds), -cohort.updates / reach
        squares = _inner(apart, apart)
        counts = _counts(cohort, weights, most_count)
        applied, tested = sent, {name: records[name] for name in trial.KEPT}
        if gate and sends:
            r = torch.where(squares > 0, _inner(steps - bar, apart) / torch.where(squares > 0, squares, 1), 0)
            c = _coefficient(state, coefficient)
            applied, tested = trial.heard(r, sent, squares > 0, counts, c, records, bounds)
        out = trial.distrusted(tested, bounds)
        gradients = clip_rows(steps + _column(applied, apart) * apart, clip)
        w = counts / counts.sum()
        sums = {
            "explained": smoothing * state["explained"] + (1 - smoothing) * (_inner(gradients - bar, apart) @ w),
            "spread": smoothing * state["spread"] + (1 - smoothing) * (squares @ w),
        }
        c = _coefficient(sums, coefficient)
        rest = _column((c - applied).clamp(min=0), apart)
        new = {"y": gradients.to(records["y"].dtype), "n": torch.where(out, 0, counts), **tested}
        new["seen"] = torch.ones_like(counts)
        verdicts = _verdicts(round, out, tested["proof"])
        sent_next = {"share": c * _share(round.world, share, power)}
        return round.but(
            cohort=replace(cohort, updates=cohort.updates + rest * reach * apart),
            state=_remember(state, records, new, round.left_out) | sums | sent_next,
            records=new,
            left_out={n: rows if n in trial.KEPT else torch.zeros_like(rows) for n, rows in round.left_out.items()},
            facts={**round.facts, "coefficient": float(c)},
            verdicts={**round.verdicts, **verdicts},
            excluded=dict.fromkeys(verdicts, _UNMOVED),
        )

    return Part(
        "memory",
        server_state=_start_state,
        client_record=lambda start: _start_record(start, torch.bfloat16 if half else start.dtype),
        letters=(lambda state, records: _letters(state, records, bounds)) if sends else None,
        gradient=_gradient if sends else None,
        apply=apply,
        by_counts=weights == "data",
        check=lambda world: _check(world, share),
    )


def _check(world: World, share: float | None) -> None:
    if share and world.local.optimizer.reach is None:
        raise CounterpoiseError(
            f"memory: clients cannot apply a share of {share:g}, because the local optimiser is not linear in the "
            "gradients. Use sgd, or leave the option share out: the server then applies all of it."
        )


def _start_state(start: Tensor) -> dict[str, Tensor]:
    names = ("count", "explained", "spread", "share")
    return {"sum": torch.zeros_like(start), **{name: start.new_zeros((), dtype=torch.float64) for name in names}}


def _start_record(start: Tensor, kind: torch.dtype) -> dict[str, Tensor]:
    number = start.new_zeros((), dtype=torch.float64)
    return {"y": torch.zeros_like(start, dtype=kind), "n": number, "seen": number.clone(), **trial.begin(start)}


def _coefficient(sums: Tensors, given: float | None) -> Tensor:
    """c, from the sums of cohorts so far; 0 while there are none."""
    spread = sums["spread"]
    if given is not None:
        return torch.full_like(spread, given)
    return torch.where(spread > 0, sums["explained"] / torch.where(spread > 0, spread, 1), 0).clamp(0, 1)


def _letters(state: Tensors, records: Tensors, bounds: trial.Bounds) -> dict[str, Tensor]:
    apart = _apart(state, records)
    return {"correction": _column(trial.doses(state["share"], records, bounds), apart) * apart}


def _gradient(client: Client, step: Step, g: Tensor) -> Tensor:
    return g - client.letter["correction"]


def _counts(cohort: Cohort, weights: Weights, most: float) -> Tensor:
    """What the clients weigh ``[C]``, before any is left out."""
    counts = cohort.examples.double() if weights == "data" else torch.ones_like(cohort.examples, dtype=torch.float64)
    return cap_counts(counts, most)


def _verdicts(round: Round, out: Tensor, proof: Tensor) -> dict[int, Verdict]:
    """Who is left out."""
    columns = torch.stack((out.double(), proof)).T.tolist()
    return {
        client: Verdict(float(round.claims[client]), None, None, None, score, "excluded", _UNMOVED)
        for client, (gone, score) in zip(round.cohort.ids, columns, strict=True)
        if gone
    }


def _column(numbers: Tensor, rows: Tensor) -> Tensor:
    return numbers.to(rows.dtype)[:, None]


def _inner(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum(1).double()


def _mean(state: Tensors) -> Tensor:
    """y_bar; zero while nobody is remembered."""
    return state["sum"] / torch.where(state["count"] > 0, state["count"], 1)


def _apart(state: Tensors, records: Tensors) -> Tensor:
    """``y_i - y_bar`` ``[C, D]``; zero for a client that is not remembered."""
    return torch.where((records["seen"] > 0)[:, None], records["y"] - _mean(state), 0)


def _reach(round: Round) -> Tensor:
    """``k_i``, as a column: how far a client's optimiser carries it per unit of gradient.

    A client may report fewer steps than the server asked for by the count that it believes, but not more: a long reach
    would lengthen its correction. Without a reach, all clients have the learning rate.
    """
    cohort, local = round.cohort, round.world.local
    lr = local.lr(round.world.round)
    if local.optimizer.reach is None:
        return torch.full_like(cohort.updates[:, :1], lr)
    asked = local.asked(cohort.ids, cohort.examples.double())
    steps = torch.minimum(cohort.steps.double(), asked.double())
    return (lr * local.optimizer.reach(steps)).to(cohort.updates.dtype)[:, None]


def _share(world: World, given: float | None, power: float) -> float:
    """The clients' part of the correction in the next round, as a fraction of c."""
    if world.local.optimizer.reach is None:
        return 0.0
    return min(1.0, world.cohort / world.population) ** power if given is None else given


def _remember(state: Tensors, old: Tensors, new: Tensors, gone: Tensors) -> dict[str, Tensor]:
    """The sums behind y_bar: with the cohort's new memories in place of the old ones, without those of clients gone."""

    def total(rows: Tensors) -> Tensor:
        summed: Tensor = rows["n"].to(state["sum"].dtype) @ rows["y"].to(state["sum"].dtype)
        return summed

    count = state["count"] + new["n"].sum() - old["n"].sum() - gone["n"].sum()
    changed = state["sum"] + total(new) - total(old) - total(gone)
    return {"sum": torch.where(count > 0, changed, 0), "count": count}
