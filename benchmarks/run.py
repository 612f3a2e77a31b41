"""`make bench`: compare the engine with a bare torch loop on the same work, in one process.

LeNet-5 on 28 x 28 images, 10 clients x 120 images, batch 20, 3 epochs, SGD with momentum. Both arms train the same
clients on the same batches; the loop is what one would write without a library. Arms take turns. A ratio is the
median over turns of the ratio within a turn, because most machines are noisy. The script also measures what each
method adds to a round of FedAvg, and how long a population of 100,000 clients takes to start. With --device cuda it
measures the methods only, on 100 clients. So it does with --backend, which says how clients train; --clock processor
times the processor's work, for cores that others use too. --of 100 makes 100 clients, of whom 10 train in a round.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from peers.machine import machine
from torch.nn import functional as F

import counterpoise as cp
from counterpoise.engine import RoundRecord, Simulation
from counterpoise.federation import Samples

CLIENTS, IMAGES, BATCH, EPOCHS, LR, MOMENTUM = 10, 120, 20, 3, 0.01, 0.9
WARM = {"cpu": 29, "cuda": 3}
"""Rounds before anything is timed: a CPU scripts steps after 5,000 of them, and a round has some 180."""
ROUNDS = {"cpu": 1, "cuda": 10}
"""How many rounds of a method a turn has."""
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
STEADY, MOST_TURNS = 0.95, 10
"""An arm is warm once a turn takes more than this part of the one before; it gets at most so many turns for that."""


def data(clients: int) -> cp.Federation:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients * IMAGES, 1, 28, 28, generator=generator)
    y = torch.randint(0, 10, (clients * IMAGES,), generator=generator)
    probe = Samples.of(torch.randn(10, 1, 28, 28, generator=generator), torch.arange(10))
    return replace(cp.Federation.from_arrays(x, y, partition=cp.iid(clients), heldout=0.0), probe=probe)


def bare_loop(federation: cp.Federation) -> Callable[[], None]:
    """One client after the other, with torch.optim and a mean of state dictionaries."""
    model = cp.models.lenet5()
    x, y = federation.base.inputs, federation.base.targets
    rows = federation.train.rows(torch.arange(CLIENTS))

    def run() -> None:
        start = {k: v.clone() for k, v in model.state_dict().items()}
        total = {k: torch.zeros_like(v) for k, v in start.items()}
        for client in range(CLIENTS):
            model.load_state_dict(start)
            optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
            for _ in range(EPOCHS):
                for batch in rows[client][torch.randperm(IMAGES)].split(BATCH):
                    optimizer.zero_grad()
                    F.cross_entropy(model(x[batch]), y[batch]).backward()
                    optimizer.step()
            for k, v in model.state_dict().items():
                total[k] += v / CLIENTS
        model.load_state_dict(total)

    return run


def without_onednn(run: Callable[[], None]) -> Callable[[], None]:
    """Run without oneDNN. The engine turns it off if that is faster; this shows how much of its lead is due to that."""

    def run_without() -> None:
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
        run()
        torch.backends.mkldnn.enabled = True  # type: ignore[assignment]

    return run_without


def engine(
    federation: cp.Federation,
    threads: int,
    method: cp.Method | None = None,
    device: str = "cpu",
    backend: str = "auto",
    cohort: int | None = None,
) -> Callable[[], RoundRecord]:
    torch.manual_seed(0)
    local = cp.Local(epochs=EPOCHS, batch=BATCH, optimizer=cp.sgd(LR, momentum=MOMENTUM))
    setting = cp.Engine(device=device, backend=backend, threads=threads if device == "cpu" else None)
    model = cp.models.lenet5()
    return Simulation(
        method or cp.methods.fedavg(), federation, model, cohort=cohort, local=local, engine=setting
    ).advance


class Cost(NamedTuple):
    """A method's round over FedAvg's on the same work: its time, the median over turns, and its bytes."""

    time: float
    up: float
    down: float
    seconds: list[float]
    """One value per turn."""


def methods(
    federation: cp.Federation,
    turns: int,
    only: list[str],
    device: str,
    backend: str,
    clock: Callable[[], float],
    cohort: int | None,
) -> dict[str, Cost]:
    """The cost of each method, and of each form of a method that has targets for several."""
    arms = {"fedavg": cp.methods.fedavg()} | {entry.name: entry.factory() for entry in cp.methods.METHODS}
    arms |= {
        "feddua, direct": cp.methods.feddua(factor="direct"),
        "fedoaed, projection": cp.methods.fedoaed(denoiser="projection"),
        "fedbac without regulariser": cp.methods.fedbac(strength=0),
        'fedbac, align="gradient"': cp.methods.fedbac(align="gradient"),
        'fedbac, align="update"': cp.methods.fedbac(align="update"),
    }
    chosen = {k: v for k, v in arms.items() if not only or k == "fedavg" or any(name in k for name in only)}
    runs = {name: engine(federation, 2, method, device, backend, cohort) for name, method in chosen.items()}
    warm = {name: run() for name, run in runs.items()}
    warm_up(runs, device)
    base = warm["fedavg"]
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            times[name].append(timed(run, 2, ROUNDS[device], clock))
    return {
        name: Cost(
            statistics.median(s / b for s, b in zip(own, times["fedavg"], strict=True)),
            warm[name].bytes_up / base.bytes_up,
            warm[name].bytes_down / base.bytes_down,
            own,
        )
        for name, own in times.items()
    }


def warm_up(runs: dict[str, Callable[[], RoundRecord]], device: str) -> None:
    """Run every arm until it becomes no faster.

    On a GPU the first rounds also allocate: pinned memory for what a round copies while the GPU is behind, and device
    memory, which other arms' captures give back.
    """
    for run in runs.values():
        timed(run, 2, WARM[device])
    before = dict.fromkeys(runs, math.inf)
    for _ in range(MOST_TURNS):
        last = {name: timed(runs[name], 2, ROUNDS[device]) for name in before}
        before = {name: seconds for name, seconds in last.items() if seconds <= STEADY * before[name]}
    gc.collect()
    gc.freeze()  # otherwise the collector looks through the objects of all arms in the rounds of each


def timed(
    run: Callable[[], object], threads: int, rounds: int = 1, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds a round, waiting for the GPU before and after, because a round begins the training of the next."""
    torch.set_num_threads(threads)
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    begun = clock()
    for _ in range(rounds):
        run()
    wait()
    return (clock() - begun) / rounds


def population() -> float:
    begun = time.perf_counter()
    federation = cp.load("synthetic", partition=cp.draws(clients=100_000, size=20))
    simulation = Simulation(cp.methods.fedavg(), federation, cp.models.mlp(federation.shape, 10), cohort=20)
    simulation.advance()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=[], help="of the methods those whose names contain one of these")
    parser.add_argument("--json", type=Path, help="also write the raw times here")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: only methods, on 100 clients")
    parser.add_argument("--backend", choices=["batched", "per-client"], help="only methods, with clients trained so")
    parser.add_argument("--clock", choices=[*CLOCKS], default="wall", help="of methods; processor: its work alone")
    parser.add_argument("--of", type=int, help="only methods; this many clients, of whom 10 train in a round")
    arguments = parser.parse_args()
    device = arguments.device
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; use --device cpu")
    federation = data(arguments.of or (CLIENTS if device == "cpu" else 100))
    cohort = CLIENTS if arguments.of else None
    alone = device == "cuda" or arguments.backend or arguments.of
    times, start = ({}, None) if alone else beside_a_loop(federation, arguments.turns)
    backend, clock = arguments.backend or "auto", CLOCKS[arguments.clock]
    costs = methods(federation, arguments.turns, arguments.only, device, backend, clock, cohort)
    print(f"\na round of the same work on {device} over fedavg's\n{'':44} time    bytes up bytes down")
    for name, cost in costs.items():
        print(f"{name:44} {cost.time:.2f} x  {cost.up:.3f} x  {cost.down:.3f} x")
    if arguments.json:
        over = {name: cost._asdict() for name, cost in costs.items()}
        clients = {"clients": federation.clients, "a round": cohort or federation.clients}
        how = {"backend": backend, "clock": arguments.clock, **clients}
        written = {"machine": machine(device), **how, "seconds": times, "population": start, "methods": over}
        arguments.json.write_text(json.dumps(written, indent=1) + "\n")


def beside_a_loop(federation: cp.Federation, turns: int) -> tuple[dict[str, list[float]], float]:
    """The engine and a loop in turns, and how long a large population takes to start."""
    arms = {
        "bare loop, 1 thread": (bare_loop(federation), 1),
        "bare loop, 1 thread, no oneDNN": (without_onednn(bare_loop(federation)), 1),
        "engine, 1 thread": (engine(federation, 1), 1),
        "bare loop, 2 threads": (bare_loop(federation), 2),
        "bare loop, 2 threads, no oneDNN": (without_onednn(bare_loop(federation)), 2),
        "engine, 2 threads": (engine(federation, 2), 2),
    }
    start = population()
    for run, threads in arms.values():
        timed(run, threads, rounds=WARM["cpu"])
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(turns):
        for name, (run, threads) in arms.items():
            times[name].append(timed(run, threads))
    base = times["bare loop, 1 thread"]
    print(f"{'LeNet-5, 10 clients x 120 images, 3 epochs':44} {'ms a round':>10}  over a 1-thread loop")
    for name, seconds in times.items():
        ratio = statistics.median(b / s for b, s in zip(base, seconds, strict=True))
        print(f"{name:44} {1000 * statistics.median(seconds):10.0f}  {ratio:.2f} x")
    print(f"\n{'100,000 clients, cohort 20: set-up and a round':44} {1000 * start:8.0f} ms")
    return times, start


if __name__ == "__main__":
    main()
