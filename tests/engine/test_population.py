"""A population of any size costs what its cohorts cost."""

import time

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.local import Local
from counterpoise.method import Part
from counterpoise.methods import fedavg


@pytest.mark.parametrize("form", [np.asarray, torch.as_tensor, lambda rows: list(torch.as_tensor(rows))])
def test_a_million_clients_may_be_a_table_of_rows_of_a_shared_base(form):
    rows = np.random.default_rng(0).integers(0, 500, (1_000_000, 4))
    x, y = np.zeros((500, 3), "f"), np.arange(500) % 10
    federation = cp.Federation.from_arrays(x, y, partition=form(rows), heldout=0.25)
    assert federation.clients == 1_000_000
    ids = torch.tensor([0, 123_456, 999_999])
    train, heldout = federation.train.rows(ids), federation.heldout.rows(ids)
    assert train.shape == (3, 3)
    assert heldout.shape == (3, 1)
    both = torch.cat([train, heldout], 1).sort(1).values
    assert both.tolist() == np.sort(rows[ids], 1).tolist()
    simulation = Simulation(fedavg(), federation, cp.models.linear((3,), 10), cohort=20, local=Local(batch=2))
    assert len(simulation.advance().outcome.weights) == 20


def test_a_hundred_thousand_clients_cost_only_those_that_were_seen():
    begun = time.perf_counter()
    keeps = Part(
        "keeps",
        client_record=lambda start: {"seen": torch.zeros_like(start)},
        client_state=lambda start: {"own": torch.zeros_like(start)},
        when_lost="it starts anew",
        finish=lambda client, reply: reply,
        apply=lambda round: round.but(records={"seen": round.records["seen"] + 1}),
    )
    federation = cp.load("synthetic", partition=cp.draws(100_000, size=20))
    simulation = Simulation(
        fedavg().adding(trust=keeps),
        federation,
        cp.models.linear(federation.shape, 10),
        cohort=20,
        local=Local(batch=10),
    )
    seen = set()
    for _ in range(3):
        record = simulation.advance()
        assert len(set(record.cohort)) == 20
        seen |= set(record.cohort)
    assert max(seen) > 50_000
    assert set(simulation.client_state["keeps"]) == set(simulation.server.records["keeps"]) == seen
    assert time.perf_counter() - begun < 10
