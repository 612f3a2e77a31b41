"""FedBaC as printed loses many clients under label skew; the soft form does not.

Twenty clients hold two label-sorted shards of digits each, and ten take part in a round. The script prints the mean
test accuracy of the last ten rounds over three seeds, its spread, and the effective number of clients (one over the
sum of the squared weights; a cohort has ten).

    python examples/fedbac_collapse.py
"""

from __future__ import annotations

import statistics
import sys

import counterpoise as cp

METHODS = {
    "fedavg": cp.methods.fedavg(),
    "fedbac, as printed": cp.methods.fedbac(strength=0),
    'fedbac, momentum="data"': cp.methods.fedbac(strength=0, momentum="data"),
    'fedbac, score="soft"': cp.methods.fedbac(strength=0, score="soft"),
    "fedbac-soft": cp.methods.fedbac_soft(),
    "fedavgm": cp.methods.fedavgm(),
}


def measure(method: cp.Method, seed: int, rounds: int) -> tuple[float, float]:
    """Accuracy and effective number of clients over the last ten rounds."""
    federation = cp.load("digits", partition=cp.shards(clients=20, per_client=2), seed=seed)
    run = cp.simulate(
        method,
        federation,
        model=cp.models.mlp,
        rounds=rounds,
        cohort=10,
        local=cp.Local(batch=16, optimizer=cp.sgd(0.05, momentum=0.9)),
        evaluation=cp.Evaluation(every=1, clients_every=0),
        seed=seed,
    )
    accuracy = statistics.mean(value for _, value in run.curve()[-10:])
    heard = statistics.mean(1 / sum(w * w for w in weights.values()) for weights in run.weights[-10:] if weights)
    return accuracy, heard


def main(rounds: int = 80, seeds: int = 3) -> None:
    print(f"{'':26} accuracy  spread  clients heard")
    for name, method in METHODS.items():
        found = [measure(method, seed, rounds) for seed in range(seeds)]
        accuracies, heard = zip(*found, strict=True)
        spread = max(accuracies) - min(accuracies)
        print(f"{name:26} {statistics.mean(accuracies):8.1%} {spread:7.1%} {statistics.mean(heard):14.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
