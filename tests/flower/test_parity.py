"""Every method of the registry gives the same model in the simulator and through Flower's messages."""

from __future__ import annotations

import pytest
import torch
from grids import InProcess
from helpers import ALL_METHODS, assert_close, blobs, differing_on_clients, double, postman, small

from counterpoise.engine import Evaluation, Simulation
from counterpoise.flower import Strategy, client_app
from counterpoise.local import Local, cosine, sgd
from counterpoise.methods import METHODS, avg

AROUND = differing_on_clients([f"feddua:{name}" for name in ALL_METHODS if name != "feddua"])  # other messages
LOCAL = Local(epochs=2, batch=4, optimizer=sgd(0.05, momentum=0.5))
SIZES, COHORT, SEED, ROUNDS = (9, 6, 12, 7, 10, 8, 11), 5, 3, 3
FEDERATION = blobs(SIZES, heldout=0.2, probe=1, proxy=20)


def method_of(case):
    return METHODS.make(case) if isinstance(case, str) else case


def deployed(case, federation, *, rounds=ROUNDS, cohort=COHORT, out=None, local=LOCAL, **grid):
    """A method's rounds through messages."""
    app = client_app(
        method_of(case),
        small(),
        lambda context: federation.only(context.node_config["partition-id"]),
        local=local,
        engine=double(),
    )
    strategy = Strategy(
        method_of(case),
        federation,
        model=small(),
        rounds=rounds,
        cohort=cohort,
        local=local,
        seed=SEED,
        engine=double(),
        evaluation=Evaluation(1, 3),
        out=out,
        patience=0,
    )
    strategy.start(InProcess(app, federation.clients, **grid))
    return strategy


def simulated(case, federation, **settings):
    simulation = Simulation(
        method_of(case),
        federation,
        small(),
        seed=SEED,
        engine=double(),
        evaluation=Evaluation(1, 3),
        **{"cohort": COHORT, "local": LOCAL} | settings,
    )
    return simulation, [simulation.advance() for _ in range(ROUNDS)]


@pytest.mark.parametrize("case", [*ALL_METHODS, *AROUND, pytest.param(avg().adding(upload=postman()), id="letters")])
def test_three_rounds_are_those_of_the_simulator(case):
    simulation, records = simulated(case, FEDERATION)
    strategy = deployed(case, FEDERATION)
    moved = simulation.server.model - simulation.trainer.start
    assert_close(strategy.simulation.server.model, simulation.server.model, moved, 1e-8)
    handed = {name: array.numpy() for name, array in strategy.arrays().items()}
    for name, value in simulation.trained().state_dict().items():
        assert handed[name] == pytest.approx(value.numpy(), rel=1e-8, abs=1e-10)
    for ours, theirs in zip(strategy.run.rounds, records, strict=True):
        assert ours.cohort == theirs.cohort
        assert ours.outcome.excluded == theirs.outcome.excluded
        assert ours.outcome.claims == theirs.outcome.claims
        assert ours.outcome.verdicts.keys() == theirs.outcome.verdicts.keys()
        assert (ours.bytes_up, ours.bytes_down) == (theirs.bytes_up, theirs.bytes_down)
        assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-8)
        assert ours.clients.keys() == theirs.clients.keys()
        for name, each in theirs.clients.items():
            assert ours.clients[name] == pytest.approx(each, rel=1e-8)


@pytest.mark.parametrize("case", ["feddua:scaffold", "krum", "clusterfedvarp"])
def test_the_order_in_which_replies_arrive_changes_no_bit(case):
    one, other = (deployed(case, FEDERATION, order=order).simulation for order in (1, 2))
    assert torch.equal(one.server.model, other.server.model)
    for part, store in one.server.records.items():
        for client in store:
            assert all(torch.equal(v, other.server.records[part][client][k]) for k, v in store[client].items())


def test_nodes_without_names_say_which_client_they_are():
    named, asked = (deployed("scaffold", FEDERATION, names=names).simulation.server for names in (True, False))
    assert torch.equal(named.model, asked.model)


def test_a_kept_optimiser_rates_by_epoch_and_clipping_are_those_of_the_simulator():
    local = Local(2, 4, sgd(0.1, momentum=0.8, keep=True), cosine(3, floor=0.1, each="epoch"), clip=0.3)
    simulation, _ = simulated("fedavg", FEDERATION, local=local)
    strategy = deployed("fedavg", FEDERATION, local=local)
    moved = simulation.server.model - simulation.trainer.start
    assert_close(strategy.simulation.server.model, simulation.server.model, moved, 1e-10)
