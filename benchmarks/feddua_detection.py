"""Measure FedDua's detection: each kind of liar against each kind of evidence.

Fashion-MNIST, 100 clients, 20 a round, LeNet-5, batch 20, 2 epochs; ten clients lie in every round. For each pair
the script prints the share of the liars' claims that are rejected, the share of honest claims that are rejected,
the area under the curve of the z-score, and the median error of the estimated count. Nobody is excluded, so every
round is judged. All samples need a GPU; on two cores, run

    python benchmarks/feddua_detection.py --rounds 30 --samples 12000
"""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

import torch

import counterpoise as cp

LIARS = {
    "honest": None,
    "x3": cp.adversary.claims(3.0, clients=10),
    "x10": cp.adversary.claims(10.0, clients=10),
    "x1/3": cp.adversary.claims(1 / 3, clients=10),
    "x3, alpha forged": cp.adversary.forged_factor(3.0, clients=10),
    "x3, |g| forged": cp.adversary.forged_gradient(3.0, clients=10),
    "x3, update scaled": cp.adversary.scaled_update(3.0, clients=10),
    "x3, data repeated": cp.adversary.repeated_data(3, clients=10),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "report": {"factor": "direct", "evidence": "report"},
    "displacement": {"factor": "direct", "evidence": "displacement"},
    "displacement, one round": {"factor": "direct", "evidence": "displacement", "memory": False},
    "both": {},
    "paper": {"paper": True},
}


def row(
    adversary: cp.Adversary | None,
    options: dict[str, Any],
    alpha: float,
    momentum: float,
    rounds: int,
    samples: int | None,
) -> str:
    federation = cp.load(
        "fashion-mnist",
        partition=cp.dirichlet(alpha, clients=100),
        heldout=0,
        proxy=1000,
        scaling="standard",
        samples=samples,
        seed=0,
    )
    sizes = federation.train.sizes(torch.arange(100))
    run = cp.simulate(
        cp.methods.feddua(**options, patience=10**6),
        federation,
        model=cp.models.lenet5,
        rounds=rounds,
        cohort=20,
        local=cp.Local(epochs=2, batch=20, optimizer=cp.sgd(0.01 if momentum else 0.05, momentum=momentum)),
        adversary=adversary,
        evaluation=cp.Evaluation(every=rounds, clients_every=rounds),
    )
    lies = {(client, r.round) for r in run.rounds for client in r.liars}
    counts = {client: float(sizes[client]) for client, _ in lies}
    found = cp.measures.detection([v for v in run.verdicts if v["z"] is not None], lies, counts)
    return f"{found.recall:7.1%} {found.false_alarms:7.1%} {found.auc:7.3f} {found.count_error:7.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--samples", type=int, help="of the 60,000, at random [default: all]")
    parser.add_argument("--alpha", type=float, action="append", help="may be given again [default: 0.5, 0.1]")
    parser.add_argument("--momentum", type=float, action="append", help="may be given again [default: 0, 0.9]")
    arguments = parser.parse_args()
    for alpha, momentum in product(arguments.alpha or (0.5, 0.1), arguments.momentum or (0.0, 0.9)):
        print(f"\nDirichlet {alpha}, momentum {momentum}: recall, false alarms, AUC, error of n", flush=True)
        for liar, adversary in LIARS.items():
            for name, options in SETTINGS.items():
                measured = row(adversary, options, alpha, momentum, arguments.rounds, arguments.samples)
                print(f"{liar:20} {name:25} {measured}", flush=True)


if __name__ == "__main__":
    main()
