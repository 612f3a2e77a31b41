"""How many images a second larger networks train on a GPU: ours, ten clients as one batch, and one model with cuDNN.

    python benchmarks/images.py [--kernels]

Ours does a round of FedAvg on random images, in TF32 and in bfloat16. The other arm repeats one step of one model as a
CUDA graph, in bfloat16 by autocast, at several batch sizes; it aggregates nothing. --kernels also lists what the GPU
spends its time on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import counterpoise as cp
from counterpoise.engine import Simulation

WORKS = {"resnet18": (cp.models.resnet18, 20, 160), "cnn6": (cp.models.cnn6, 64, 640)}
"""A model, the batch size and how many images a client has."""
CLIENTS, ROUNDS, STEPS, BATCHES, MOST_KERNELS = 10, 3, 20, (20, 64, 200), 9


def seconds(run: Callable[[], object], times: int) -> float:
    torch.cuda.synchronize()
    since = time.perf_counter()
    for _ in range(times):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - since) / times


def simulation(model: Callable[[], nn.Module], batch: int, images: int, bf16: bool) -> Simulation:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * images, 3, 32, 32, generator=generator)
    y = torch.randint(0, 10, (CLIENTS * images,), generator=generator)
    federation = cp.Federation.from_arrays(x, y, partition=cp.iid(CLIENTS), heldout=0.0)
    local, engine = cp.Local(epochs=1, batch=batch, optimizer=cp.sgd(0.05)), cp.Engine(device="cuda", bf16=bf16)
    return Simulation(cp.methods.fedavg(), federation, model(), local=local, engine=engine)


def captured(model: nn.Module, batch: int) -> Callable[[], None]:
    x, y = torch.randn(batch, 3, 32, 32, device="cuda"), torch.randint(0, 10, (batch,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def kernels(run: Callable[[], object]) -> None:
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_device_time_total)
    whole = sum(row.self_device_time_total for row in rows)
    for row in rows[:MOST_KERNELS]:
        share, each = row.self_device_time_total / whole, row.self_device_time_total / row.count
        print(f"    {share:6.1%} {row.count:5d} x {each:7.1f} us  {row.key[:80]}")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--kernels", action="store_true")
    given = words.parse_args()
    torch.backends.cudnn.benchmark = True
    for name, (model, batch, images) in WORKS.items():
        for bf16 in (False, True):
            made = simulation(model, batch, images, bf16)
            seconds(made.advance, ROUNDS)
            rate = CLIENTS * images / seconds(made.advance, ROUNDS)
            print(
                f"{name}, ours, {CLIENTS} clients x {batch}, {'bf16' if bf16 else 'TF32'}: {rate:,.0f} images a second"
            )
            if given.kernels:
                kernels(made.advance)
            del made
            torch.cuda.empty_cache()
        for size in BATCHES:
            rate = size / seconds(captured(model().cuda(), size), STEPS)
            print(f"{name}, one model with cuDNN, batch {size}, bf16: {rate:,.0f} images a second")


if __name__ == "__main__":
    main()
