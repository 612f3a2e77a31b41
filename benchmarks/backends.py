"""Compare clients as one batch with clients one at a time, on the same perceptrons, and show which auto chooses.

Clients train two epochs of 120 samples each (equal) or of log-normal sizes from 10 to 1,200 (unequal), with batch
10. With --device cuda: rounds of 100 of 1,000 unequal clients, by the ratio of the widths that a captured chunk can
have as its clients finish (`buckets.widths`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from arms import Ours
from machine import machine
from torch import nn
from works import WORKS, Work, pfl_cnn

import counterpoise as cp
from counterpoise.engine.backends import batched

PERCEPTRON = {"images": 120, "batch": 10, "epochs": 2, "lr": 0.01, "momentum": 0.9}
RATIOS = (1.2, 1.5, 2.0, 4.0)


def perceptron(inputs: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def turns(arms: dict[str, Ours], many: int, rounds: int, before: Callable[[str], None]) -> dict[str, list[float]]:
    """Seconds a round of each arm, arms in turn."""
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(many):
        for name, arm in arms.items():
            before(name)
            begun = time.perf_counter()
            arm.run(rounds)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times[name].append((time.perf_counter() - begun) / rounds)
    return times


def on_a_cpu(many: int) -> dict[str, Any]:
    results = {}
    for inputs, hidden in ((54, 10), (64, 64), (784, 100), (784, 500)):
        for clients in (5, 20, 100):
            for spread in (0.0, 1.0):
                work = Work("", (inputs,), clients=clients, cohort=clients, spread=spread, **PERCEPTRON)
                data, model = work.data(), perceptron(inputs, hidden)
                options = {"batched": {"backend": "batched"}, "per-client": {"backend": "per-client"}, "auto": {}}
                arms = {name: Ours(work, data, model, "cpu", None, **given) for name, given in options.items()}
                taken = arms.pop("auto").simulation.engine.backend
                steps = [work.epochs * -(-len(rows) // work.batch) for rows in data.rows]
                for arm in arms.values():  # until steps are scripted: after 5,000 of clients, after 200 of chunks
                    arm.run(1 + max(200 // max(steps), 5000 // sum(steps)))
                times = turns(arms, many, 1, lambda name: None)
                parameters = sum(p.numel() for p in model.parameters())
                name = f"{parameters} parameters, {clients} {'unequal' if spread else 'equal'}"
                least = {arm: min(own) for arm, own in times.items()}
                print(
                    f"{name:35} {least['per-client'] / least['batched']:6.2f} x as one batch; auto: {taken}", flush=True
                )
                results[name] = {"seconds_a_round": times, "auto": taken}
    return results


def on_a_gpu(many: int) -> dict[str, Any]:
    unequal = {**PERCEPTRON, "clients": 1000, "cohort": 100, "spread": 1.0}
    pictures = unequal | {"images": 50, "epochs": 1, "cohort": 50}
    works: dict[str, tuple[Work, nn.Module]] = {
        "linear": (Work("", (64,), **unequal), nn.Linear(64, 10)),
        "perceptron": (Work("", (784,), **unequal), perceptron(784, 100)),
        "LeNet-5": (WORKS["unequal"], cp.models.lenet5()),
        "CIFAR-10 network": (Work("", (3, 32, 32), **pictures), pfl_cnn(False)),
    }
    results = {}
    for name, (work, model) in works.items():
        data, arms = work.data(), {}

        def narrow(ratio: str) -> None:
            batched._RATIO = float(ratio)

        for ratio in map(str, RATIOS):
            narrow(ratio)
            arms[ratio] = Ours(work, data, model, "cuda", None)
            arms[ratio].run(12)
        times = turns(arms, many, 10, narrow)
        print(name, {ratio: round(1000 * min(own), 1) for ratio, own in times.items()}, flush=True)
        results[name] = {"seconds_a_round_by_ratio": times, "parameters": sum(p.numel() for p in model.parameters())}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--turns", type=int, default=3, help="times that every arm is measured [default: 3]")
    parser.add_argument("--out", type=Path, help="also write the raw times here")
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; use --device cpu")
    results = (on_a_cpu if asked.device == "cpu" else on_a_gpu)(asked.turns)
    if asked.out:
        asked.out.write_text(json.dumps({"machine": machine(asked.device), **results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
