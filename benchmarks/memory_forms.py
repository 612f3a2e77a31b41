"""`python benchmarks/memory_forms.py`: what smaller forms of counterpoise's memory cost in accuracy.

After every round, the memory of each client seen is replaced by what a smaller form of it would hold:

    rank r      y_bar plus the best approximation of rank r to the differences from it (singular vectors)
    clusters k  the mean of the client's cluster (k-means on the memories, begun anew in every round)

Beside them stand the full memory, half precision and no memory. The data are scikit-learn's digits, the model an MLP
with 32 hidden units; 10 clients a round, 60 rounds, 5 seeds. Accuracies are means with 95 % intervals (Student's t).
Beside them stand the bytes a client, and how many attackers and honest clients were ever left out.

    python benchmarks/memory_forms.py --out benchmarks/results/memory-forms.json
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from peers.machine import machine
from torch import Tensor

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.measures.significance import student_interval

ROUNDS, COHORT, SEEDS = 60, 10, 5
WORLDS: dict[str, tuple[int, Callable[[int], Any], float]] = {
    "LQ-2, 10 of 20": (20, lambda clients: cp.lq(clients=clients, labels=2), 0.0),
    "Dirichlet 0.3, 10 of 20": (20, lambda clients: cp.dirichlet(clients=clients, alpha=0.3), 0.0),
    "LQ-2, 10 of 20, 20 % sign flips": (20, lambda clients: cp.lq(clients=clients, labels=2), 0.2),
    "LQ-2, 10 of 100": (100, lambda clients: cp.lq(clients=clients, labels=2), 0.0),
}
FORMS = [
    "full",
    "half",
    *(f"rank {r}" for r in (20, 10, 5, 2, 1)),
    *(f"clusters {k}" for k in (20, 10, 5, 2)),
    "none",
]


def forms(world: str) -> list[str]:
    """Those that are smaller than the full memory: 20 clients need neither 20 singular vectors nor 20 clusters."""
    return [form for form in FORMS if not form.endswith(" 20") or WORLDS[world][0] > 20]


def low_rank(rows: Tensor, centre: Tensor, rank: int) -> Tensor:
    """The rows, with their differences from a centre cut down to the largest singular values."""
    left, sizes, right = torch.linalg.svd(rows - centre, full_matrices=False)
    return centre + left[:, :rank] * sizes[:rank] @ right[:rank]


def clustered(rows: Tensor, clusters: int, seed: int) -> Tensor:
    """Every row replaced by the mean of its cluster: k-means, begun with rows drawn far apart (k-means++)."""
    draw = torch.Generator().manual_seed(seed)
    centres = rows[torch.randint(len(rows), (1,), generator=draw)]
    while len(centres) < min(clusters, len(rows)):
        far = torch.cdist(rows, centres).amin(1).square()
        if not far.any():
            break  # no more different rows
        centres = torch.cat((centres, rows[torch.multinomial(far, 1, generator=draw)]))
    for _ in range(20):
        nearest = torch.cdist(rows, centres).argmin(1)
        members = torch.nn.functional.one_hot(nearest, len(centres)).T.to(rows.dtype)
        centres = torch.where(members.any(1, keepdim=True), members @ rows / members.sum(1, keepdim=True), centres)
    return centres[torch.cdist(rows, centres).argmin(1)]


def shrink(server: Any, form: str, seed: int) -> None:
    """Replace the memory by what the form would hold, and y_bar by the mean of that."""
    kind, _, number = form.partition(" ")
    store, state = server.records["memory"], server.state["memory"]
    records = store.gather(seen := list(store))
    rows, counts = records["y"].double(), records["n"].double()
    if kind == "rank":
        records["y"] = low_rank(rows, (state["sum"] / state["count"]).double(), int(number))
    else:
        records["y"] = clustered(rows, int(number), seed)
    state["sum"] = (counts @ records["y"]).to(state["sum"].dtype)
    store.scatter(seen, {name: tensor.to(store.initial[name].dtype) for name, tensor in records.items()})


def bytes_per_client(form: str, clients: int, size: int) -> float:
    kind, _, number = form.partition(" ")
    if kind == "rank":  # singular vectors and y_bar, shared, and each client's numbers along them
        return 4 * ((int(number) + 1) * size / clients + int(number))
    if kind == "clusters":  # the means, shared, and the number of each client's cluster
        return 4 * (int(number) * size / clients + 1)
    return {"full": 4.0, "half": 2.0, "none": 0.0}[kind] * size


def trained(world: str, form: str, seed: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    clients, partition, flipped = WORLDS[world]
    held = cp.load("digits", partition=partition(clients), heldout=0.0, seed=seed)
    torch.manual_seed(0)
    simulation = Simulation(
        cp.methods.counterpoise(coefficient=0 if form == "none" else None, half=form == "half"),
        held,
        cp.models.mlp(held.shape, 10, hidden=32),
        cohort=COHORT,
        seed=seed,
        local=cp.Local(batch=16, optimizer=cp.sgd(0.1)),
        engine=cp.Engine(device="cpu", threads=1),
        evaluation=cp.Evaluation(every=ROUNDS, clients_every=0),
        limits=cp.Limits(norm_ratio=math.inf),
        **({"adversary": cp.adversary.sign_flip(fraction=flipped)} if flipped else {}),
    )
    records = []
    for round in range(1, ROUNDS + 1):
        records.append(simulation.advance(last=round == ROUNDS))
        if " " in form:
            shrink(simulation.server, form, seed=1000 * seed + round)
    liars = {client for record in records for client in record.liars}
    out = {client for record in records for client in record.outcome.excluded}
    return {
        "world": world,
        "form": form,
        "seed": seed,
        "accuracy": 100 * records[-1].metrics["accuracy"],
        "coefficient": records[-1].outcome.facts.get("coefficient"),
        "attackers": len(liars),
        "attackers_left_out": len(out & liars),
        "honest_left_out": len(out - liars),
        "bytes_per_client": math.ceil(bytes_per_client(form, clients, len(simulation.server.model))),
    }


def table(runs: list[dict[str, Any]]) -> str:
    lines = ["| | " + " | ".join(WORLDS) + " |", "|---" * (1 + len(WORLDS)) + "|"]
    for form in FORMS:
        cells = []
        for world in WORLDS:
            found = [run for run in runs if (run["world"], run["form"]) == (world, form)]
            if not found:
                cells.append("")
                continue
            low, high = student_interval([run["accuracy"] for run in found])
            mean = statistics.mean(run["accuracy"] for run in found)
            left_out = sum(run["honest_left_out"] for run in found)
            caught = sum(run["attackers_left_out"] for run in found)
            size = found[0]["bytes_per_client"]
            cells.append(f"{mean:.1f} ± {(high - low) / 2:.1f}, {size} B, out {caught}/{left_out}")
        lines.append(f"| {form} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="every run's numbers, as JSON; runs found there are kept"
    )
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="which forms")
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=WORLDS, help="which worlds")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    chosen = parser.parse_args()
    runs = json.loads(chosen.out.read_text(encoding="utf-8"))["runs"] if chosen.out.exists() else []
    done = {(run["world"], run["form"], run["seed"]) for run in runs}
    asked = [(w, f, s) for f in chosen.forms for w in chosen.worlds for s in range(SEEDS) if f in forms(w)]
    here = machine("cpu")
    with ProcessPoolExecutor(chosen.jobs) as pool:
        for run in as_completed([pool.submit(trained, *one) for one in asked if one not in done]):
            runs.append(run.result())
            runs.sort(key=lambda run: ([*WORLDS].index(run["world"]), FORMS.index(run["form"]), run["seed"]))
            chosen.out.write_text(json.dumps({"machine": here, "runs": runs}, indent=1) + "\n", encoding="utf-8")
    print(table(runs))


if __name__ == "__main__":
    main()
