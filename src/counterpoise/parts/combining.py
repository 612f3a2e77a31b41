"""From a cohort and its weights to one update."""

from __future__ import annotations

from math import inf

from counterpoise.method import Part, Round
from counterpoise.parts.weighing import need_weights

__all__ = ["mean"]


def mean() -> Part:
    """``sum_i a_i d_i / sum_i a_i``, per layer if the weights are. The round is skipped if a sum is not positive."""

    def apply(round: Round) -> Round:
        weights = need_weights(round, "A mean")
        total = weights.sum(0)
        if not all(0 < part < inf for part in total.view(-1).tolist()):
            return round.skip("the clients' weights do not sum to a positive number")
        weights = weights / total
        factors = weights.to(round.model.dtype)
        if factors.ndim == 1:
            return round.but(weights=weights, combined=factors @ round.cohort.updates)
        spread = factors[:, round.world.layout.layers.to(factors.device)]
        return round.but(weights=weights, combined=(spread * round.cohort.updates).sum(0))

    return Part("mean", apply=apply)
