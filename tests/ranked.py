"""The same runs on one process and on several: ``RANK=0 WORLD_SIZE=2 ... python ranked.py FOLDER CASE ...``.

Each rank writes what it saw to ``FOLDER/RANK.json``, and how it ended to ``FOLDER/RANK.end``.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from helpers import digits, double, postman
from torch import nn

import counterpoise as cp
from counterpoise.engine import Evaluation, Simulation
from counterpoise.engine.backends.distributed import rank
from counterpoise.errors import Interrupted
from counterpoise.local import Local, sgd
from counterpoise.methods import METHODS, avg

METHODS_HERE = ("fedavg", "feda4", "fedbac", "fedoaed", "feddua:scaffold", "qffl", "ditto", "fedvarp")
"""A probe, a broadcast, traces, reports with client state and rehearsals, a survey, personal models, records."""
CASES: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in METHODS_HERE},
    "fewer clients than ranks": {"method": "scaffold", "cohort": 1},
    "unequal work": {"local": Local(batch=8, steps=[1, 9, 2, 3, 4, 5, 6], optimizer=sgd(0.05))},
    "liars": {"adversary": [cp.adversary.sign_flip(clients=2), cp.adversary.noisy(clients=2)]},
    "stragglers": {"cohort": cp.stragglers(5, rate=0.4)},
    "dropout": {"dropout": 0.5},
    "letters": {"method": avg().adding(upload=postman())},
    "batched": {"method": "scaffold", "engine": double(backend="batched", chunk=2)},
}


def history(case: str, rounds: int = 2) -> dict[str, Any]:
    """Everything a run of a case shows, as plain values."""
    settings = dict(CASES[case])
    federation = digits(7, samples=500, probe=1, proxy=80)
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Dropout(settings.pop("dropout", 0.0)), nn.Linear(8, 10)]
    given = {
        "cohort": 5,
        "local": Local(batch=16, optimizer=sgd(0.05, momentum=0.5)),
        "engine": double(),
        "evaluation": Evaluation(1, 1),
    } | settings
    method = given.pop("method", "fedavg")
    method = METHODS.make(method) if isinstance(method, str) else method
    simulation = Simulation(method, federation, cp.models.registry.Layers(*layers), seed=1, **given)
    records = [simulation.advance() for _ in range(rounds)]
    return {
        "model": simulation.server.model.tolist(),
        "cohorts": [record.cohort for record in records],
        "weights": [record.outcome.weights for record in records],
        "excluded": [record.outcome.excluded for record in records],
        "liars": [record.liars for record in records],
        "metrics": [record.metrics for record in records],
        "clients": [record.clients for record in records],
        "up": [record.bytes_up for record in records],
        "kept": {
            name: {client: {k: v.tolist() for k, v in store[client].items()} for client in store}
            for name, store in (simulation.client_state | simulation.server.records).items()
        },
    }


def failing() -> None:
    """A loss that fails on rank 1 alone."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if rank() == 1 and outputs.requires_grad:
            raise ValueError("the disc is full of eels")
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    cp.simulate("fedavg", digits(4, samples=100), model=cp.models.linear, rounds=2, loss=loss, engine=double())


def stopping() -> None:
    """Rank 1 is asked to stop in round 2 of 4."""

    def on_round(record: Any) -> None:
        if rank() == 1 and record.round == 2:
            signal.raise_signal(signal.SIGINT)

    cp.simulate("fedavg", digits(4, samples=100), model=cp.models.linear, rounds=4, on_round=on_round, engine=double())


def drifting() -> None:
    """Ranks that were given different seeds."""
    cp.simulate("fedavg", digits(4, samples=100), model=cp.models.linear, rounds=2, seed=rank(), engine=double())


ENDS = {"failing": failing, "stopping": stopping, "drifting": drifting}


def main(folder: Path, cases: Sequence[str]) -> None:
    try:
        if cases[0] in ENDS:
            ENDS[cases[0]]()
        else:
            (folder / f"{rank()}.json").write_text(json.dumps({case: history(case) for case in cases}))
        end = "finished"
    except (Exception, Interrupted) as error:
        end = f"{type(error).__name__}: {error}"
    (folder / f"{rank()}.end").write_text(end)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
