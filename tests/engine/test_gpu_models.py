"""Models that need more than a vector of weights, on a GPU as on the CPU: batch norm, adapters, masks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import counterpoise as cp
from counterpoise.engine import Simulation

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("backend", ["batched", "per-client"])
@pytest.mark.parametrize("norm", ["local", "average", "batch"])
def test_batch_norm_is_the_cpus(norm: str, backend: str) -> None:
    federation = cp.load("digits", partition=cp.dirichlet(0.5, clients=8), heldout=0.2)
    found = {}
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
        simulation = Simulation(
            cp.methods.fedavgm(),
            federation,
            cp.models.with_norm(net, norm),
            cohort=5,
            local=cp.Local(epochs=2, batch=10, optimizer=cp.sgd(0.05)),
            engine=cp.Engine(backend=backend, device=device, dtype="float64"),
            evaluation=cp.Evaluation(1, 1),
        )
        records = [simulation.advance() for _ in range(3)]
        metrics = [
            [
                *record.metrics.values(),
                *(value for by_client in record.clients.values() for value in by_client.values()),
            ]
            for record in records
        ]
        found[device] = simulation.server.model.cpu(), metrics
    assert torch.allclose(found["cpu"][0], found["cuda"][0], rtol=1e-9, atol=1e-11)
    assert found["cpu"][1] == [pytest.approx(row, rel=1e-6, nan_ok=True) for row in found["cuda"][1]]


@pytest.mark.parametrize("backend", ["batched", "per-client"])
def test_adapters_of_a_transformer_on_padded_texts_are_the_cpus(backend: str) -> None:
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(1, 20, (n % 6 + 3,), generator=generator).tolist() for n in range(60)]
    inputs = cp.padded([text[:-1] for text in texts], token=0)
    targets = cp.padded([text[1:] for text in texts], token=-100)["input_ids"]
    federation = cp.Federation.from_datasets(
        {f"client {i}": ({k: v[i::6] for k, v in inputs.items()}, targets[i::6]) for i in range(6)}
    )
    found = {}
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        base = cp.models.transformer(federation.shape, vocabulary=20, width=16, heads=2, layers=2)
        simulation = Simulation(
            cp.methods.fedavg(),
            federation,
            cp.models.with_lora(base, rank=2, where="blocks.*"),
            cohort=4,
            local=cp.Local(batch=4, optimizer=cp.sgd(0.1)),
            engine=cp.Engine(backend=backend, device=device, dtype="float64"),
            evaluation=cp.Evaluation(every=0, clients_every=0),
        )
        for _ in range(3):
            simulation.advance()
        found[device] = simulation.server.model.cpu()
    assert torch.allclose(found["cpu"], found["cuda"], rtol=1e-9, atol=1e-11)
