"""What every method of the registry must bear, new ones included without being named.

That a resumed run is the uninterrupted one bit for bit is in runs/test_runs.py, that two equal runs are
equal in engine/test_repeatability.py, that FedDua's are those of the method alone in methods/feddua/test_compositions.py,
and that a bad reply is left out in engine/test_admission.py.
"""

from __future__ import annotations

import math

import pytest
import torch
from helpers import ALL_METHODS, digits, flat

import counterpoise as cp
from counterpoise.engine import Engine, Simulation
from counterpoise.local import Local, sgd
from counterpoise.method import Cohort
from counterpoise.methods import METHODS

CASES = [*ALL_METHODS, *(f"feddua:{name}" for name in ALL_METHODS if name != "feddua")]


def federated(case, rounds=3, clients=10, cohort=5, seed=1, **settings):
    """Some rounds on digits with sampling, in float32 as users run them; the records and the simulation."""
    federation = digits(clients, probe=1, proxy=200)
    torch.manual_seed(0)
    model = cp.models.mlp(federation.shape, 10, hidden=8)
    local = Local(batch=32, optimizer=sgd(0.05, momentum=0.5))
    engine = Engine(device="cpu", threads=1)
    simulation = Simulation(
        METHODS.make(case), federation, model, cohort=cohort, local=local, seed=seed, engine=engine, **settings
    )
    records = [simulation.advance() for _ in range(rounds)]
    assert bool(simulation.server.model.isfinite().all())
    return simulation, records, flat(model)


@pytest.mark.parametrize("case", CASES)
def test_a_cohort_of_one_is_used_or_skipped_with_a_reason(case):
    calls = [[0, 1, 2, 3, 4], [3], [7], [0, 1, 2, 3, 4]]
    simulation, records, start = federated(case, 4, cohort=lambda seed, round, n: torch.tensor(calls[round - 1]))
    assert not any(record.outcome.excluded for record in records)
    for record in records[1:3]:
        weights = record.outcome.weights
        if not record.outcome.skipped and weights is not None:
            assert set(weights) == {record.cohort[0]}
            weight = weights[record.cohort[0]]
            if "qffl" in simulation.trainer.program.method.name:  # F^q / h, whatever the client's loss makes of it
                assert 0 < weight < 1
            else:
                share = simulation.trainer.federation.clients if "mifa" in simulation.trainer.program.method.name else 1
                assert weight == pytest.approx(1 / share)
        assert not record.outcome.skipped or "clients" in record.outcome.skipped
    assert records[0].outcome.skipped == records[3].outcome.skipped == ""
    assert not torch.equal(simulation.server.model, start)


@pytest.mark.parametrize("case", CASES)
def test_one_that_sends_nan_and_one_that_never_returns_stop_nobody(case):
    """Client 2 is silent in every round; in each, another client sends NaN, which is well in another round."""
    calls, broken = [[0, 1, 2, 3, 4, 5], [2, 3, 5, 6, 7, 8], [0, 2, 4, 5, 8, 9]], [3, 5, 0]

    def lying(round, cohort):
        updates = cohort.updates.clone()
        updates[cohort.ids.index(broken[round - 1])] = math.nan
        sent = Cohort(cohort.ids, updates, cohort.examples, cohort.steps, cohort.reports)
        return sent.keep(torch.tensor([client != 2 for client in cohort.ids]))

    simulation, records, start = federated(
        case, cohort=lambda seed, round, n: torch.tensor(calls[round - 1]), adversary=lying
    )
    for record, client in zip(records, broken, strict=True):
        assert record.outcome.excluded == {2: "it did not reply", client: "its update holds NaN or infinity"}
        assert record.outcome.skipped == ""
    assert not torch.equal(simulation.server.model, start)
    for store in simulation.server.records.values():
        assert 2 not in list(store)
