"""From a cohort to weights that sum to one."""

from __future__ import annotations

import torch
from torch import Tensor

from counterpoise.method import Part, Round

__all__ = ["by_data", "shares", "uniform"]


def shares(round: Round) -> Tensor:
    """The weights ``[C]`` for the clients' other reports; equal if the rule has no weights or has them per layer."""
    if round.weights is None or round.weights.ndim > 1:
        return round.model.new_full((len(round.cohort),), 1 / len(round.cohort))
    return round.weights.to(round.model.dtype)


def by_data() -> Part:
    """``n_i / sum_j n_j``: FedAvg's weights (McMahan et al. 2017, Algorithm 1)."""

    def apply(round: Round) -> Round:
        return round.but(weights=round.cohort.examples / round.cohort.examples.sum())

    return Part("by-data", apply=apply, by_counts=True)


def uniform() -> Part:
    """``1 / |S|``, whatever a client claims."""

    def apply(round: Round) -> Round:
        return round.but(weights=torch.full_like(round.cohort.examples, 1 / len(round.cohort)))

    return Part("uniform", apply=apply)
