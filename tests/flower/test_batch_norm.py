"""Batch norm on Flower's nodes: in each choice the simulator's numbers, wherever statistics are kept."""

from __future__ import annotations

import pytest
import torch
from flwr.clientapp.mod import LocalDpMod
from grids import InProcess
from helpers import assert_close, blobs, double, net
from torch import nn

import counterpoise as cp
from counterpoise.engine import Evaluation, Simulation
from counterpoise.errors import CounterpoiseError, Failed
from counterpoise.flower import Strategy, client_app
from counterpoise.flower.records import to_record
from counterpoise.local import Local, sgd
from counterpoise.methods import METHODS
from counterpoise.models.batch_norm import NORMS

LOCAL, COHORT = Local(epochs=2, batch=4, optimizer=sgd(0.05, momentum=0.5)), 3
FEDERATION = blobs((9, 6, 12, 7), heldout=0.2, test=(torch.randn(15, 6).numpy(), torch.arange(15).numpy() % 3))


def model(norm):
    return cp.models.with_norm(net(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)), norm)


def node(norm, method="fedavg", **settings):
    held = {"local": LOCAL, "engine": double()} | settings
    return client_app(method, model(norm), lambda c: FEDERATION.only(c.node_config["partition-id"]), **held)


def server(norm, method="fedavg", rounds=3, **settings):
    given = {"local": LOCAL, "seed": 3, "engine": double(), "evaluation": Evaluation(1, 1), "patience": 0} | settings
    return Strategy(method, FEDERATION, model=model(norm), rounds=rounds, cohort=COHORT, **given)


@pytest.mark.parametrize("method", ["fedavg", "ditto", "averaged"])
@pytest.mark.parametrize("norm", NORMS)
def test_rounds_are_those_of_the_simulator(norm, method):
    simulation = Simulation(
        METHODS.make(method),
        FEDERATION,
        model(norm),
        local=LOCAL,
        seed=3,
        cohort=COHORT,
        engine=double(),
        evaluation=Evaluation(1, 1),
    )
    records = [simulation.advance() for _ in range(3)]
    strategy = server(norm, method)
    strategy.start(InProcess(node(norm, method), 4))
    loop = strategy.loop
    assert_close(loop.server.model, simulation.server.model, simulation.server.model - simulation.trainer.start, 1e-9)
    for name, values in simulation.server.state.get("batch-norm", {}).items():
        assert torch.allclose(loop.server.state["batch-norm"][name], values, rtol=0, atol=1e-10)
    for ours, theirs in zip(strategy.run.rounds, records, strict=True):
        assert (ours.cohort, ours.outcome.excluded) == (theirs.cohort, theirs.outcome.excluded)
        assert (ours.bytes_up, ours.bytes_down) == (theirs.bytes_up, theirs.bytes_down)
        assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-8)
        assert {name: pytest.approx(each, rel=1e-8) for name, each in theirs.clients.items()} == ours.clients
    assert {*records[-1].clients} >= {"personal_loss" if norm == "local" else "loss"}


def test_initial_arrays_bring_their_statistics():
    strategy, begun = server("average", rounds=1), model("average")
    begun[1].running_mean.fill_(3.0)
    seen = []
    grid = InProcess(node("average"), 4, meddle=lambda message, reply: seen.append(message) or reply)
    strategy.start(grid, to_record(begun.state_dict()))
    assert seen[0].content["arrays"]["broadcast/batch-norm/mean"].numpy().tolist() == [3.0] * 5
    begun[1].running_var = torch.ones(2)
    with pytest.raises(CounterpoiseError, match="other shapes than the model's"):
        server("average").start(grid, to_record(begun.state_dict()))


def test_local_privacy_does_not_cover_statistics(caplog):
    """It makes updates private and nothing else, so that a node refuses it."""
    mod = LocalDpMod(1.0, 0.1, 1.0, 0.1)
    with pytest.raises(Failed):
        server("average", rounds=1).start(InProcess(node("average", mods=[mod]), 4))
    assert "batch-norm/variance too. Choose norm='local' or 'batch' for the model" in caplog.text
    strategy = server("local", rounds=1)
    strategy.start(InProcess(node("local", mods=[mod]), 4))
    assert strategy.run.status == "finished"
