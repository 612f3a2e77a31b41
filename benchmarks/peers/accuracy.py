"""`python benchmarks/peers/accuracy.py`: does our engine reach the same accuracy as others?

Every arm trains pfl's CIFAR-10 benchmark on the real images, with dropout, from the same weights and the same
partition: test accuracy after 500 rounds, over three seeds. Each arm and seed is its own process, and `--together`
of them run at once. Results are added to those in the file, so arms can be run one by one. CIFAR-10 comes from the
data folder; files `cifar10.npz.*` there are first joined in order to `cifar10.npz`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from arms import Arm, Loop, Ours, Pfl
from machine import machine
from torch import Tensor
from works import WORKS, Data, Work

import counterpoise as cp
from counterpoise.federation.sources import data_folder

_RESULTS = Path(__file__).resolve().parent.parent / "results"


def joined(folder: Path) -> None:
    """Join the parts of a file, if it came in parts."""
    whole, parts = folder / "cifar10.npz", sorted(folder.glob("cifar10.npz.*"))
    if parts and not whole.is_file():
        with whole.open("wb") as file:
            for part in parts:
                with part.open("rb") as piece:
                    shutil.copyfileobj(piece, file)


def one(arm: str, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    """The curve of one arm and seed."""
    federation = cp.load("cifar10", partition=cp.iid(1000), heldout=0.0, seed=seed)
    work: Work = dataclasses.replace(WORKS["cifar"], clients=federation.clients)
    inputs, targets = federation.base.take(torch.arange(len(federation.base)), torch.float32)
    data = Data(inputs, targets, tuple(federation.train.rows(torch.arange(federation.clients))))
    torch.manual_seed(seed)
    model = work.model(dropout=True, seed=seed)
    options = {key: json.loads(value) for key, _, value in (option.partition("=") for option in asked.engine)}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    made: Arm
    if arm == "ours":
        made = Ours(work, data, model, asked.device, asked.threads, seed=seed, **options)
    else:
        made = {"loop": Loop, "pfl": Pfl}[arm](work, data, model, asked.device)
    assert federation.test is not None
    test = federation.test.to(asked.device)
    curve = {}
    for done in range(asked.every, asked.rounds + 1, asked.every):
        made.run(asked.every)
        curve[done] = accuracy(
            work, made.weights(), *test.take(torch.arange(len(test), device=asked.device), torch.float32)
        )
    return {"arm": arm, "engine": options, "seed": seed, "rounds": asked.rounds, "accuracy": curve}


@torch.no_grad()
def accuracy(work: Work, weights: Tensor, inputs: Tensor, targets: Tensor) -> float:
    model = work.model(dropout=True).to(weights.device).eval()
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    right = [model(x).argmax(1) == y for x, y in zip(inputs.split(1000), targets.split(1000), strict=True)]
    return float(torch.cat(right).double().mean())


def programs(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Run every arm and seed in its own process."""

    def go(arm: str, seed: int) -> dict[str, Any] | None:
        command = [sys.executable, __file__, *sys.argv[1:], "--single", arm, str(seed)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{arm}, seed {seed}: {(done.stderr.strip() or 'it failed').splitlines()[-1]}", flush=True)
            return None
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        print(f"{arm}, seed {seed}: {100 * last(found):.2f} %", flush=True)
        return found

    with ThreadPoolExecutor(asked.together) as pool:
        waiting = [pool.submit(go, arm, seed) for arm in asked.arms for seed in asked.seeds]
        return [found for future in waiting if (found := future.result()) is not None]


def last(found: dict[str, Any]) -> float:
    return float(found["accuracy"][max(found["accuracy"], key=int)])


def label(found: dict[str, Any]) -> str:
    return ", ".join([found["arm"], *(f"{key}={json.dumps(value)}" for key, value in sorted(found["engine"].items()))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arms", nargs="+", choices=["ours", "loop", "pfl"], default=["ours", "loop"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--every", type=int, default=50, help="test accuracy every so many rounds")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--together", type=int, default=3, help="programs at a time")
    parser.add_argument("--engine", action="append", default=[], metavar="KEY=VALUE", help="an option of our engine")
    parser.add_argument("--out", type=Path, default=_RESULTS / "accuracy.json")
    parser.add_argument("--single", nargs=2, metavar=("ARM", "SEED"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; use --device cpu")
    joined(data_folder())
    if asked.single:
        print(json.dumps(one(asked.single[0], int(asked.single[1]), asked)))
        return
    found = programs(asked)
    new = {(label(one), one["seed"], one["rounds"]) for one in found}
    before = json.loads(asked.out.read_text()) if asked.out.is_file() else []
    runs = [run for run in before if (label(run), run["seed"], run["rounds"]) not in new]
    runs += [{**run, "machine": machine(asked.device)} for run in found]
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(runs, indent=1) + "\n")
    print(f"\n{f'test accuracy after {asked.rounds} rounds':40} mean     spread   seeds")
    shown = [run for run in runs if run["rounds"] == asked.rounds]
    for name in dict.fromkeys(map(label, shown)):
        ends = [last(run) for run in shown if label(run) == name]
        spread = statistics.stdev(ends) if len(ends) > 1 else float("nan")
        print(f"  {name:38} {100 * statistics.mean(ends):5.2f} %  {100 * spread:5.2f}    {len(ends)}")


if __name__ == "__main__":
    main()
