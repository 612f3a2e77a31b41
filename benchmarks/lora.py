"""`python benchmarks/lora.py`: what low-rank adapters of 32 clients cost beside the frozen model that they share.

A causal transformer of over 100 million parameters, with random weights, reads Shakespeare by role. Every client
trains adapters of rank 8 on all its linear layers, and all clients of a round train as one batch. For cohorts of 1, 8
and 32 clients, in float32 and in bfloat16: the peak of GPU memory during the third round, and the median time of a
round after the first two. Each point runs in its own process. Raw numbers go to benchmarks/results/lora-cuda.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from peers.machine import machine

import counterpoise as cp
from counterpoise.engine import Simulation

_RESULTS = Path(__file__).resolve().parent / "results" / "lora-cuda.json"
_MIB = 2**20


def point(cohort: int, bf16: bool, width: int, layers: int, rounds: int, device: str) -> dict[str, Any]:
    federation = cp.load("shakespeare", partition=cp.natural(clients=400, minimum=20))
    torch.manual_seed(0)
    base = cp.models.transformer(federation.shape, width=width, heads=width // 64, layers=layers)
    model = cp.models.with_lora(base, rank=8, where="blocks.*")
    simulation = Simulation(
        cp.methods.fedavg(),
        federation,
        model,
        cohort=cohort,
        local=cp.Local(steps=2, batch=8, optimizer=cp.sgd(0.1)),
        engine=cp.Engine(device=device, bf16=bf16),
        evaluation=cp.Evaluation(every=0, clients_every=0),
    )
    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        record = simulation.advance()
        seconds.append(time.perf_counter() - begun)
    adapters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in model.parameters()) - adapters
    return {
        "clients": cohort,
        "bf16": bf16,
        "frozen parameters": frozen,
        "adapter parameters": adapters,
        "frozen MiB": round(4 * frozen / _MIB),
        "adapters MiB a client": round(4 * adapters / _MIB, 1),
        "peak MiB": round(torch.cuda.max_memory_allocated() / _MIB) if device == "cuda" else None,
        "held MiB": round(torch.cuda.memory_allocated() / _MIB) if device == "cuda" else None,
        "seconds a round": round(statistics.median(seconds[2:]), 3),
        "train loss": round(record.metrics["train_loss"], 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=Path, default=_RESULTS)
    parser.add_argument("--point", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(point(**json.loads(options.point))))
        return
    rows = []
    for bf16 in (False, True) if options.device == "cuda" else (False,):
        for clients in options.clients:
            asked = {"cohort": clients, "bf16": bf16, "width": options.width, "layers": options.layers}
            text = json.dumps(asked | {"rounds": options.rounds, "device": options.device})
            command = [sys.executable, __file__, "--point", text]
            said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            rows.append(json.loads(said.splitlines()[-1]))
            print(rows[-1], flush=True)
    options.out.write_text(json.dumps({"machine": machine(options.device), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
