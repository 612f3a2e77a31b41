"""From a cohort to weights that sum to one."""

from __future__ import annotations

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Part, Round

__all__ = ["by_data", "equal", "need_weights", "refuse_weights", "shares", "uniform"]


def shares(round: Round) -> Tensor:
    """The weights ``[C]`` for the clients' other reports; equal if the rule has no weights or has them per layer."""
    if round.weights is None or round.weights.ndim > 1:
        return round.model.new_full((len(round.cohort),), 1 / len(round.cohort))
    return round.weights.to(round.model.dtype)


def equal(round: Round) -> Tensor:
    """``1 / |S|`` for each client."""
    return torch.full_like(round.cohort.examples, 1 / len(round.cohort))


def by_data() -> Part:
    """``n_i / sum_j n_j``: FedAvg's weights (McMahan et al. 2017, Algorithm 1)."""

    def apply(round: Round) -> Round:
        return round.but(weights=round.cohort.examples / round.cohort.examples.sum())

    return Part("by-data", apply=apply, by_counts=True)


def uniform() -> Part:
    """``1 / |S|``, whatever a client claims."""

    def apply(round: Round) -> Round:
        return round.but(weights=equal(round))

    return Part("uniform", apply=apply, by_counts=False)


def need_weights(round: Round, what: str) -> Tensor:
    """The weights, for a part that combines updates by them; `what` needs them, for the error."""
    if round.weights is None:
        raise CounterpoiseError(
            f"{what} needs weights, and no part that acts before it has set any. Put one that does, such as "
            "parts.by_data(), into the slot weigh; a part of your own there must return round.but(weights=...)."
        )
    return round.weights


def refuse_weights(round: Round, part: str) -> None:
    """For a part that combines updates by a rule of its own: refuse weights, which would have no effect."""
    if round.weights is not None:
        raise CounterpoiseError(
            f"part {part} takes no weights, so the weighting rule before it would have no effect. "
            "Leave the slot weigh empty: .replacing(weigh=())."
        )
