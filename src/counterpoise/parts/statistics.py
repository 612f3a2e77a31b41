"""Running statistics of batch norms: one part's report and state, never entries of the model."""

from __future__ import annotations

from math import inf
from statistics import median_high

import torch
from torch import Tensor

from counterpoise.method import Client, Part, Reply, Round, Step, Tensors
from counterpoise.parts.weighing import shares

__all__ = ["BATCH_NORM", "averaged_statistics", "own_norms", "plausible_statistics"]

BATCH_NORM = "batch-norm"
"""The part that keeps the statistics: means and variances ``[K]`` of all channels, and batches ``[layers]``."""


def averaged_statistics(initial: Tensors) -> Part:
    """Clients begin with the server's statistics, and the server takes the mean of theirs.

    ``s <- sum_i a_i s_i`` for means, variances and numbers of batches. The ``a_i`` are the weights of the clients'
    updates, those below 0 as 0, scaled to sum to 1.
    """

    def finish(client: Client, reply: Reply) -> Reply:
        return Reply(reply.update, dict(client.memo))

    def apply(round: Round) -> Round:
        a = shares(round).clamp(min=0)
        a = torch.where(a.sum() > 0, a / a.sum(), 1 / len(a))
        return round.but(state={name: (a[:, None] * values).sum(0) for name, values in round.reports.items()})

    return Part(
        BATCH_NORM,
        tracks=True,
        server_state=lambda start: {name: values.to(start) for name, values in initial.items()},
        broadcast=dict,
        begin=lambda client: dict(client.broadcast),
        after_step=_take,
        finish=finish,
        apply=apply,
    )


def own_norms(initial: Tensors, places: Tensor) -> Part:
    """FedBN: the statistics of a model's batch norms and their scales and shifts, at these `places`, stay on the client.

    Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021,
    Algorithm 1.
    """

    def client_state(start: Tensor) -> dict[str, Tensor]:
        return {name: values.to(start) for name, values in initial.items()} | own(start)

    def own(model: Tensor) -> dict[str, Tensor]:
        return {"private": model.index_select(0, places)} if len(places) else {}

    def after_step(client: Client, step: Step) -> dict[str, Tensor]:
        return {**step.statistics, **own(step.w)}

    def finish(client: Client, reply: Reply) -> Reply:
        return Reply(reply.update, {}, dict(client.memo))

    def personal(model: Tensor, state: Tensors) -> Tensor:
        return model.scatter(0, places, state["private"]) if len(places) else model

    return Part(
        BATCH_NORM,
        tracks=True,
        private=places if len(places) else None,
        client_state=client_state,
        when_lost="its batch norms start again from the initial model's",
        begin=lambda client: dict(client.state),
        after_step=after_step,
        finish=finish,
        personal=personal,
    )


def _take(client: Client, step: Step) -> dict[str, Tensor]:
    return dict(step.statistics)


def plausible_statistics() -> Part:
    """Leave out a client whose statistics cannot be those of the steps it was asked for.

    A variance is below 0; the number of batches does not fit the number of steps; or its activations are far larger
    than usual. Their size is ``sqrt(sum_k m_k^2 + v_k)``. It may be `Limits.norm_ratio` times the cohort's upper median,
    and as many times the server's, once the server has averaged any.
    """

    def apply(round: Round) -> Round:
        reports, known, ratio = round.cohort.reports[BATCH_NORM], round.shared[BATCH_NORM], round.norm_ratio
        taken, steps = (reports["batches"] - known["batches"]).double(), round.cohort.steps[:, None]
        sizes, own = _size(reports).tolist(), float(_size(known)) if float(known["batches"].sum()) else 0.0
        most = ratio * min((size for size in (median_high(sizes), own) if size > 0), default=inf)
        wrong = {
            "a variance among its batch norms' statistics is below 0": (reports["variance"] < 0).any(1).tolist(),
            "its batch norms count other batches than its steps": ((taken < 0) | (taken / ratio > steps))
            .any(1)
            .tolist(),
            f"its batch norms' statistics are over {ratio:g} times larger than usual": [size > most for size in sizes],
        }
        reasons = [next((why for why, rows in wrong.items() if rows[i]), "") for i in range(len(round.cohort))]
        return round.but(excluded={c: why for c, why in zip(round.cohort.ids, reasons, strict=True) if why})

    return Part("plausible-statistics", reads=(BATCH_NORM,), apply=apply)


def _size(statistics: Tensors) -> Tensor:
    """How large the activations are, in a root of a sum of squares."""
    mean, variance = statistics["mean"].double(), statistics["variance"].double()
    return (mean.square() + variance.clamp(min=0)).sum(-1).sqrt()
