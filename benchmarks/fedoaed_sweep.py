"""Sweep FedOAED's open options: the paper gives no lambda, s, m, e or optimiser.

Fashion-MNIST, 500 clients, 5 a round, LeNet-5, batch 20, 3 epochs, momentum 0.9 (table 1). The learning rate is
0.01, because FedAvg itself diverges on standardised inputs at the printed 0.1. The script prints the mean test
accuracy of the last ten evaluations, minus FedAvg's with the same seed. It needs a GPU:

    python benchmarks/fedoaed_sweep.py --rounds 200
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import counterpoise as cp

OPTIONS: list[dict[str, Any]] = [
    *({"mix": mix} for mix in (0.1, 0.5, 1.0)),
    *({"every": every} for every in (1, 4)),
    *({"epochs": epochs} for epochs in (5, 25)),
    *({"denoiser": "projection", "rank": rank, "mix": 0.5} for rank in (1, 2)),
    *({"rate": rate} for rate in (0.001, 0.01)),
    {"hidden": 64},
]


def accuracy(method: cp.Method, partition: cp.Partition, seed: int, rounds: int) -> float:
    federation = cp.load("fashion-mnist", partition=partition, scaling="standard", heldout=0, seed=seed)
    run = cp.simulate(
        method,
        federation,
        model=cp.models.lenet5,
        rounds=rounds,
        cohort=5,
        local=cp.Local(epochs=3, batch=20, optimizer=cp.sgd(0.01, momentum=0.9)),
        seed=seed,
        evaluation=cp.Evaluation(every=5, clients_every=rounds),
    )
    return cp.measures.mean_of_last(run.curve(), 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    partitions = {"Dirichlet .5": cp.dirichlet(0.5, clients=500), "LQ-2": cp.lq(2, clients=500)}
    seeds = range(arguments.seeds)
    base = {}
    for name, partition in partitions.items():
        for seed in seeds:
            base[name, seed] = accuracy(cp.methods.fedavg(), partition, seed, arguments.rounds)
        print(f"fedavg, {name}: {100 * statistics.mean(base[name, s] for s in seeds):.2f} %", flush=True)
    for options in [{}, *OPTIONS]:
        cells = []
        for name, partition in partitions.items():
            gains = [
                accuracy(cp.methods.fedoaed(**options), partition, seed, arguments.rounds) - base[name, seed]
                for seed in seeds
            ]
            cells.append(f"{name} {100 * statistics.mean(gains):+.2f} ({', '.join(f'{100 * g:+.2f}' for g in gains)})")
        label = ", ".join(f"{k}={v}" for k, v in options.items()) or "defaults"
        print(f"{label:45} {'   '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
