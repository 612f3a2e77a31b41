"""FedBaC as printed loses many clients under label skew; the soft form does not.

Twenty clients hold two label-sorted shards of digits each, and ten take part in a round. Printed: the mean test
accuracy of the last ten rounds over three seeds, its spread, and the effective number of clients (of ten).
"""

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
    federation = cp.load("digits", partition=cp.shards(clients=20, per_client=2), seed=seed)
    local, each = cp.Local(batch=16, optimizer=cp.sgd(0.05, momentum=0.9)), cp.Evaluation(every=1, clients_every=0)
    how = {"rounds": rounds, "cohort": 10, "local": local, "evaluation": each, "seed": seed}
    run = cp.simulate(method, federation, model=cp.models.mlp, **how)
    heard = statistics.mean(1 / sum(w * w for w in weights.values()) for weights in run.weights[-10:] if weights)
    return statistics.mean(value for _, value in run.curve()[-10:]), heard


def main(rounds: int = 80, seeds: int = 3) -> None:
    print(f"{'':26} accuracy  spread  clients heard")
    for name, method in METHODS.items():
        accuracies, heard = zip(*(measure(method, seed, rounds) for seed in range(seeds)), strict=True)
        mean, spread = statistics.mean(accuracies), max(accuracies) - min(accuracies)
        print(f"{name:26} {mean:8.1%} {spread:7.1%} {statistics.mean(heard):14.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
