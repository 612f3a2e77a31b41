"""Cohort and weights to one update."""

from __future__ import annotations

from counterpoise.method import Part, Round

__all__ = ["mean"]


def mean() -> Part:
    """``sum_i a_i d_i / sum_i a_i``. Weights that are all zero, or not finite, skip the round."""

    def apply(round: Round) -> Round:
        weights = round.weights
        assert weights is not None, "a mean needs a part that weighs before it"
        total = weights.sum()
        if not bool(total.isfinite() & (total > 0)):
            return round.skip("the weights of all clients are zero")
        weights = weights / total
        return round.but(weights=weights, combined=weights.to(round.model.dtype) @ round.cohort.updates)

    return Part("mean", apply=apply)
