"""Write your own weighting rule in 20 lines: clients whose updates agree with the mean count more.

A rule is a part with one function from a round to a round: stacked updates ``[C, D]`` to weights ``[C]``. It goes into
the slot `weigh` of any method.
"""

import sys

import torch
from torch.nn import functional as F

import counterpoise as cp


def by_agreement(sharpness: float) -> cp.Part:
    """``w_i ~ n_i exp(sharpness cos(d_i, mean d))``."""

    def apply(round: cp.Round) -> cp.Round:
        cosine = F.cosine_similarity(round.cohort.updates, round.cohort.updates.mean(0, keepdim=True))
        weights = round.cohort.examples * torch.exp(sharpness * cosine)
        return round.but(weights=weights / weights.sum(), notes={"agreement": cosine})

    return cp.Part("by-agreement", apply=apply)


def main(rounds: int = 30, seeds: int = 3) -> dict[str, list[float]]:
    agreeing = cp.methods.fedavg().replacing("fedagree", weigh=by_agreement(2.0))
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        federation = cp.load("digits", partition=cp.dirichlet(0.1, clients=20), seed=seed)
        for method in (cp.methods.fedavg(), agreeing):
            run = cp.simulate(method, federation, model=cp.models.mlp, rounds=rounds, cohort=10, seed=seed)
            found.setdefault(method.name, []).append(run.accuracy or 0.0)
    beside = cp.measures.paired(found["fedagree"], found["fedavg"])
    print(f"{found}\ndifference {beside.difference:+.2%} [{beside.low:+.2%}, {beside.high:+.2%}]")
    return found


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
