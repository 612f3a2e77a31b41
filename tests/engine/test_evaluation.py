"""How often evaluation comes, whom it looks at, and clients' own models as one batch."""

import tomllib
from math import ceil

import pytest
import torch
from helpers import BACKENDS, blobs, digits, double
from hypothesis import given
from hypothesis import strategies as st

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.engine.clients.batches import count_seen, plan
from counterpoise.engine.rounds import evaluation
from counterpoise.engine.rounds.evaluation import Evaluation
from counterpoise.local import Local
from counterpoise.methods import ditto, fedavg


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=5), st.integers(1, 9))
def test_samples_gone_through_are_those_of_the_plan(clients, batch):
    sizes, steps = (torch.tensor(column) for column in zip(*clients, strict=True))
    planned = plan(torch.arange(len(sizes)), sizes, steps, batch, torch.zeros_like(sizes))
    assert count_seen(sizes, steps, batch).tolist() == planned.real.sum((1, 2)).tolist()
    assert count_seen(torch.tensor([0]), torch.tensor([0]), batch).tolist() == [0]


SIZES = [10, 20, 40, 90]  # of which 2, 4, 8 and 18 are held out: 128 train, 32 in the mean


def resolved(method=None, **settings):
    federation = blobs(SIZES, heldout=0.2)
    federation = cp.Federation(federation.base, federation.train, federation.heldout, test=federation.base, classes=3)
    setting = {"cohort": 2, "local": Local(batch=8), "engine": double()} | settings
    model = cp.models.linear(federation.shape, 3)
    return Simulation(method or fedavg(), federation, model, **setting).loop.evaluator.setting


@pytest.mark.parametrize(
    ("settings", "trained"),
    [
        ({}, 2 * 32),
        ({"cohort": None}, 4 * 32),
        ({"local": Local(batch=8, epochs=3)}, 2 * 32 * 3),
        ({"local": Local(batch=8, steps=1, epochs=3)}, 2 * 8),
        (
            {"local": Local(batch=10, steps=[1, 1, 1, 9])},
            2 * (8 + 10 + 10 + 82) / 4,
        ),  # nine steps: 72, and 10 once more
    ],
)
def test_intervals_follow_from_the_samples_a_round_trains_on(settings, trained):
    """Training costs three evaluations of a sample, and each kind of evaluation may cost half as much as training."""
    expected = Evaluation(ceil(160 / (1.5 * trained)), ceil(32 / (1.5 * trained)))
    assert resolved(**settings) == expected
    assert resolved(ditto(), **settings).clients_every == ceil(64 / (1.5 * trained))


def test_what_the_user_asks_for_stands():
    assert resolved(evaluation=Evaluation(7, 0, batch=3)) == Evaluation(7, 0, batch=3)


def test_intervals_are_written_into_the_run(tmp_path):
    cp.simulate(
        "fedavg", digits(20), model=cp.models.linear, rounds=1, cohort=1, local=Local(batch=16), out=tmp_path / "run"
    )
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["evaluation"]
    assert written["every"] > 1
    assert written["clients_every"] > 1


def test_of_a_large_population_the_same_few_are_measured_every_time(monkeypatch):
    monkeypatch.setattr(evaluation, "_MOST_CLIENTS", 5)
    federation = digits(20)

    def measured(seed):
        simulation = Simulation(
            ditto(),
            federation,
            cp.models.linear(federation.shape, 10),
            seed=seed,
            local=Local(batch=16),
            engine=double(),
            evaluation=Evaluation(0, 1),
        )
        return [simulation.advance().clients for _ in range(2)]

    first, second = measured(0)
    assert len(first["accuracy"]) == 5
    assert set(first["accuracy"]) == set(second["accuracy"]) == set(first["personal_accuracy"])
    assert set(measured(1)[0]["accuracy"]) != set(first["accuracy"])


@pytest.mark.parametrize("batch", [1, 7, 500])
@pytest.mark.parametrize("backend", BACKENDS)
def test_own_models_of_unequal_clients_are_measured_as_one_by_one(backend, batch):
    federation = blobs([3, 30, 11, 1, 17], heldout=0.3)  # the fourth holds nothing out
    simulation = Simulation(
        ditto(),
        federation,
        cp.models.linear(federation.shape, 3),
        local=Local(batch=4),
        engine=double(backend=backend),
        evaluation=Evaluation(0, 1, batch=batch),
    )
    found = simulation.advance().clients
    store, module = simulation.client_state["personal-model"], simulation.trained()
    assert list(found["personal_loss"]) == [0, 1, 2, 4]
    for client, loss in found["personal_loss"].items():
        ids = torch.tensor([client])
        rows = federation.heldout.rows(ids)[0]
        torch.nn.utils.vector_to_parameters(store[client]["v"], module.parameters())
        with torch.no_grad():
            outputs = module(federation.base.inputs[rows])
        expected = torch.nn.functional.cross_entropy(outputs, federation.base.targets[rows])
        assert loss == pytest.approx(float(expected), rel=1e-12)
        right = (outputs.argmax(1) == federation.base.targets[rows]).double().mean()
        assert found["personal_accuracy"][client] == pytest.approx(float(right), abs=1e-12)
