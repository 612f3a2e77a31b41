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
from counterpoise.method import Client, Part, Round, Step, Tensors, World
from counterpoise.parts.bounded import clip_rows
from counterpoise.parts.capped import cap_counts

__all__ = ["Weights", "memory"]

_FEWEST = 5
"""Smaller cohorts say too little about c to test a client against it."""

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

    With `gate`, the server withholds the share from a client whose replies show that it does not apply it, and applies
    all of the correction itself. It tests nobody in a cohort of fewer than five.
    """
    sends = share != 0

    def apply(round: Round) -> Round:
        cohort, state, records = round.cohort, round.state, round.records
        apart, reach = _apart(state, records), _reach(round)
        sent, steps = _shares(state, records), -cohort.updates / reach
        applied, excess = sent, records["excess"]
        if gate and sends and len(cohort) >= _FEWEST:
            applied, excess = _response(_coefficient(state, coefficient), sent, steps - _mean(state), apart, excess)
        gradients = clip_rows(steps + _column(applied, apart) * apart, clip)
        counts = (
            cohort.examples.double() if weights == "data" else torch.ones_like(cohort.examples, dtype=torch.float64)
        )
        counts = cap_counts(counts, most_count)
        w = counts / counts.sum()
        repeated, squares = _inner(gradients - _mean(state), apart), _inner(apart, apart)
        sums = {
            "explained": smoothing * state["explained"] + (1 - smoothing) * (repeated @ w),
            "spread": smoothing * state["spread"] + (1 - smoothing) * (squares @ w),
        }
        c = _coefficient(sums, coefficient)
        rest = _column((c - applied).clamp(min=0), apart)
        new = {"y": gradients, "n": counts, "excess": excess}
        return round.but(
            cohort=replace(cohort, updates=cohort.updates + rest * reach * apart),
            state=_remember(state, records, new, round.left_out)
            | sums
            | {"share": c * _share(round.world, share, power)},
            records=new,
            left_out={n: rows if n == "excess" else torch.zeros_like(rows) for n, rows in round.left_out.items()},
            facts={**round.facts, "coefficient": float(c)},
        )

    def check(world: World) -> None:
        if share and world.local.optimizer.reach is None:
            raise CounterpoiseError(
                f"memory: clients cannot apply a share of {share:g}, because the local optimiser is not linear in the "
                "gradients. Use sgd, or leave the option share out: the server then applies all of it."
            )

    return Part(
        "memory",
        server_state=_start_state,
        client_record=_start_record,
        letters=_letters if sends else None,
        gradient=_gradient if sends else None,
        apply=apply,
        by_counts=weights == "data",
        check=check,
    )


def _start_state(start: Tensor) -> dict[str, Tensor]:
    names = ("count", "explained", "spread", "share")
    return {"sum": torch.zeros_like(start), **{name: start.new_zeros((), dtype=torch.float64) for name in names}}


def _start_record(start: Tensor) -> dict[str, Tensor]:
    number = start.new_zeros((), dtype=torch.float64)
    return {"y": torch.zeros_like(start), "n": number, "excess": number.clone()}


def _coefficient(sums: Tensors, given: float | None) -> Tensor:
    """c, from the sums of cohorts so far; 0 while there are none."""
    spread = sums["spread"]
    if given is not None:
        return torch.full_like(spread, given)
    return torch.where(spread > 0, sums["explained"] / torch.where(spread > 0, spread, 1), 0).clamp(0, 1)


def _response(c: Tensor, sent: Tensor, steps: Tensor, apart: Tensor, excess: Tensor) -> tuple[Tensor, Tensor]:
    """The share of its memory that each client seems to have applied ``[C]``, and the evidence that it does not.

    `steps` are what entered the optimisers, less y_bar. Their part along the memory is ``c - a`` if a client applied
    the share a, c if it ignored it, and ``c + a`` if it reversed its update. The evidence is the excess over c, added
    up with weights a. Only a client with positive evidence is read by its own reply, from -a (reversed) to 0 (ignored).
    """
    squares = _inner(apart, apart)
    over = torch.where(squares > 0, _inner(steps, apart) / torch.where(squares > 0, squares, 1) - c, 0)
    excess = excess + sent * over
    return torch.where(excess > 0, (-over).clamp(max=0).maximum(-sent), sent), excess


def _letters(state: Tensors, records: Tensors) -> dict[str, Tensor]:
    return {"correction": _column(_shares(state, records), records["y"]) * _apart(state, records)}


def _gradient(client: Client, step: Step, g: Tensor) -> Tensor:
    return g - client.letter["correction"]


def _shares(state: Tensors, records: Tensors) -> Tensor:
    """The share ``a_i`` that each client is sent ``[C]``: 0 for a client that does not apply it."""
    return torch.where(records["excess"] > 0, 0, state["share"])


def _column(numbers: Tensor, rows: Tensor) -> Tensor:
    return numbers.to(rows.dtype)[:, None]


def _inner(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum(1).double()


def _mean(state: Tensors) -> Tensor:
    """y_bar; zero while nobody is remembered."""
    return state["sum"] / torch.where(state["count"] > 0, state["count"], 1)


def _apart(state: Tensors, records: Tensors) -> Tensor:
    """``y_i - y_bar`` ``[C, D]``; zero for a client that is not remembered."""
    return torch.where((records["n"] > 0)[:, None], records["y"] - _mean(state), 0)


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
        summed: Tensor = rows["n"].to(rows["y"].dtype) @ rows["y"]
        return summed

    count = state["count"] + new["n"].sum() - old["n"].sum() - gone["n"].sum()
    changed = state["sum"] + total(new) - total(old) - total(gone)
    return {"sum": torch.where(count > 0, changed, 0), "count": count}
