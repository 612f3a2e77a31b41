"""A control variate for each client, kept by the server alone, with an estimated coefficient.

``y_i`` is the memory of client i: the mean gradient of its last round, before any correction. ``y_bar`` is their mean
over the clients seen, and ``v_i = y_i - y_bar``. The server sends client i the correction ``a v_i``, and the client
steps along ``g - a v_i``. The server adds ``(c - a) k_i v_i`` to its update, with k_i the distance that its optimiser
carries it per unit of gradient. FedAvg has c = 0, FedVARP c = 1 and a = 0, SCAFFOLD c = a = 1.

In the code, `bar` is y_bar, `apart` the rows v_i, and `reach` the k_i. `counts` are capped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Client, Part, Round, Step, Tensors, Verdict, World
from counterpoise.parts import trial
from counterpoise.parts.bounded import clip_factors, shorten
from counterpoise.parts.capped import cap, check_cap
from counterpoise.parts.columns import Numbers, column, divided, fetch, lengths, read, written

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
        counts, reach = _read(round, weights, most_count)
        bar, tested = _mean(state), read(records, trial.KEPT)
        apart = _apart(records, bar)
        sent, steps = trial.doses(float(state["share"]), tested, bounds), cohort.updates / column(-reach, apart)
        inner, along, squares = fetch(_inner(steps - bar, apart), apart @ bar, _inner(apart, apart))
        applied, r, known = sent, divided(inner, squares), squares > 0  # a_i as sent, r_i
        if gate and sends:
            c = _coefficient(state, coefficient)
            applied, tested = trial.heard(r, sent, known, counts, c, tested, bounds)
        out = trial.distrusted(tested, bounds)
        gradients = torch.addcmul(steps, column(applied, apart), apart)  # G_i
        short = clip_factors(lengths(gradients), clip)
        gradients = shorten(gradients, short)
        told = short * (inner + applied * squares) - (1 - short) * along  # <G_i - y_bar, v_i>
        w = counts / counts.sum()
        new = {"explained": float(told @ w), "spread": float(squares @ w)}
        sums = {name: smoothing * state[name] + (1 - smoothing) * new[name] for name in new}
        c = _coefficient(sums, coefficient)
        rest = column(np.maximum(c - applied, 0) * reach, apart)  # what is left for the server
        kept = written({"n": np.where(out, 0, counts), "seen": np.ones_like(counts), **tested})
        kept["y"] = gradients.to(records["y"].dtype)
        verdicts = _verdicts(round, out, tested["proof"])
        sent_next = {"share": torch.full_like(state["share"], c * _share(round.world, share, power))}
        return round.but(
            cohort=replace(cohort, updates=torch.addcmul(cohort.updates, rest, apart)),
            state=_remember(state, records, kept, round.left_out) | sums | sent_next,
            records=kept,
            left_out={n: rows if n in trial.KEPT else torch.zeros_like(rows) for n, rows in round.left_out.items()},
            facts={**round.facts, "coefficient": c},
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
    return {"sum": torch.zeros_like(start)} | {name: _zero() for name in ("count", "explained", "spread", "share")}


def _start_record(start: Tensor, kind: torch.dtype) -> dict[str, Tensor]:
    return {"y": torch.zeros_like(start, dtype=kind), "n": _zero(), "seen": _zero(), **trial.begin()}


def _zero() -> Tensor:
    """A number that stays on the CPU."""
    return torch.zeros((), dtype=torch.float64)


def _coefficient(sums: Tensors, given: float | None) -> float:
    """c, from the sums of cohorts so far; 0 while there are none."""
    explained, spread = float(sums["explained"]), float(sums["spread"])
    if given is not None:
        return float(given)
    return min(max(explained / spread, 0.0), 1.0) if spread > 0 else 0.0


def _letters(state: Tensors, records: Tensors, bounds: trial.Bounds) -> dict[str, Tensor]:
    apart = _apart(records, _mean(state))
    doses = trial.doses(float(state["share"]), read(records, trial.KEPT), bounds)
    return {"correction": column(doses, apart) * apart}


def _gradient(client: Client, step: Step, g: Tensor) -> Tensor:
    return g - client.letter["correction"]


def _verdicts(round: Round, out: trial.Those, proof: Numbers) -> dict[int, Verdict]:
    """Who is left out."""
    return {
        client: Verdict(float(round.claims[client]), None, None, None, score, "excluded", _UNMOVED)
        for client, gone, score in zip(round.cohort.ids, out.tolist(), proof.tolist(), strict=True)
        if gone
    }


def _inner(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum(1)


def _mean(state: Tensors) -> Tensor:
    """y_bar; zero while nobody is remembered."""
    return state["sum"] / (float(state["count"]) or 1)


def _apart(records: Tensors, bar: Tensor) -> Tensor:
    """v_i, ``y_i - y_bar`` ``[C, D]``; zero for a client that is not remembered."""
    return torch.addcmul(records["y"].to(bar.dtype), column(records["seen"].numpy(), bar), bar, value=-1)


def _read(round: Round, weights: Weights, most: float) -> tuple[Numbers, Numbers]:
    """The clients' counts, capped over the whole cohort, and their k_i.

    A client may report fewer steps than the server asked for, but not more: a long reach would lengthen its correction.
    What the server asked for follows from the count that it believes. Without a reach, k_i is the learning rate.
    """
    cohort, local = round.cohort, round.world.local
    examples, steps = fetch(cohort.examples, cohort.steps)
    counts = examples if weights == "data" else np.ones_like(examples)
    counts, lr = np.minimum(counts, cap(counts, most)), local.lr(round.world.round)
    if local.optimizer.reach is None:
        return counts, np.full_like(counts, lr)
    asked = local.asked(cohort.ids, torch.from_numpy(examples)).double().numpy()
    return counts, lr * local.optimizer.reach(torch.from_numpy(np.minimum(steps, asked))).numpy()


def _share(world: World, given: float | None, power: float) -> float:
    """The clients' part of the correction in the next round, as a fraction of c."""
    if world.local.optimizer.reach is None:
        return 0.0
    return min(1.0, world.cohort / world.population) ** power if given is None else given


def _remember(state: Tensors, old: Tensors, new: Tensors, gone: Tensors) -> dict[str, Tensor]:
    """The sums behind y_bar: with the cohort's new memories in place of the old ones, without those of clients gone."""
    total, count = state["sum"], state["count"]
    for sign, rows in ((1, new), (-1, old), (-1, gone)):
        if len(rows["n"]):
            n = rows["n"].to(total, non_blocking=True)
            total = torch.addmv(total, rows["y"].to(total.dtype).T, n, alpha=sign)
            count = count + sign * rows["n"].sum()
    return {"sum": total if count > 0 else torch.zeros_like(total), "count": count}
