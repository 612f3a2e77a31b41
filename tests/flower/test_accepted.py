"""Nodes go back to the state that the server took in last, as the simulator's clients do, to the bit."""

from __future__ import annotations

import pytest
import torch
from flwr.app import MessageType
from grids import InProcess
from helpers import blobs, double, small

from counterpoise.engine import Evaluation, Simulation
from counterpoise.flower import Strategy, client_app
from counterpoise.local import Local, sgd
from counterpoise.methods import METHODS

LOCAL = Local(epochs=2, batch=4, optimizer=sgd(0.05))
FEDERATION = blobs((9, 6, 12), heldout=0.2, proxy=4)
SEED, ROUNDS = 3, 4
ENGINE = double(backend="per-client", threads=1)
LOST = {(1, 1), (2, 0), (2, 1), (3, 1)}
"""Rounds and clients whose replies do not arrive."""


def app(method):
    return client_app(
        METHODS.make(method),
        small(),
        lambda c: FEDERATION.only(c.node_config["partition-id"]),
        local=LOCAL,
        engine=ENGINE,
    )


def strategy(method, **settings):
    settings = {"model": small(), "engine": ENGINE, "seed": SEED, "patience": 0, "local": LOCAL} | settings
    return Strategy(METHODS.make(method), FEDERATION, rounds=ROUNDS, **settings)


def simulated(method, lost=frozenset()):
    def losing(round, cohort):
        return cohort.keep(torch.tensor([(round, client) not in lost for client in cohort.ids]))

    settings = {"local": LOCAL, "seed": SEED, "engine": ENGINE, "evaluation": Evaluation(1, 1)}
    simulation = Simulation(METHODS.make(method), FEDERATION, small(), adversary=losing, **settings)
    return simulation, [simulation.advance() for _ in range(ROUNDS)]


def same_evaluation(ours, theirs):
    """A node evaluates in batches of its own, which may round the mean differently."""
    assert ours.clients.keys() == theirs.clients.keys()
    for name, each in theirs.clients.items():
        assert ours.clients[name] == pytest.approx(each, rel=1e-12)


class Losing(InProcess):
    """Replies that never arrive; training that a server asks for again is done again."""

    def __init__(self, app, lost=frozenset(), dies=None) -> None:
        super().__init__(app, 3, meddle=self.drop)
        self.lost, self.dies = lost, dies

    def drop(self, message, answer):
        told = message.content.config_records["config"]
        return None if (told["round"], told["client"]) in self.lost else answer

    def send_and_receive(self, messages, *, timeout=None):
        replies = super().send_and_receive(messages, timeout=timeout)
        kinds = {(int(r.metadata.group_id), r.metadata.message_type.split(".")[0]) for r in replies}
        if self.dies in kinds:
            self.dies = None
            raise ConnectionError("the server is gone, after the nodes have answered")
        return replies


@pytest.mark.parametrize("method", ["scaffold", "feddc", "ditto"])
def test_with_lost_replies_a_deployment_is_the_simulation_to_the_bit(method):
    simulation, records = simulated(method, LOST)
    made = strategy(method)
    made.start(Losing(app(method), LOST))
    assert torch.equal(made.simulation.server.model, simulation.server.model)
    for ours, theirs in zip(made.run.rounds, records, strict=True):
        assert ours.outcome.excluded == theirs.outcome.excluded
        assert ours.bytes_down == theirs.bytes_down
        same_evaluation(ours, theirs)
    for part in simulation.server.accepted:
        assert made.simulation.server.accepted_rounds(part, range(3)) == [4, 4, 4]
        assert [record.outcome.excluded.keys() for record in records] == [{1}, {0, 1}, {1}, set()]


@pytest.mark.parametrize("kind", [MessageType.TRAIN, MessageType.EVALUATE])
@pytest.mark.parametrize("method", ["scaffold", "ditto"])
def test_a_round_that_the_server_did_not_keep_is_repeated_from_the_state_before(method, kind, tmp_path):
    grid = Losing(app(method), dies=(3, kind))
    with pytest.raises(ConnectionError):
        strategy(method, out=tmp_path / "run").start(grid)
    again = strategy(method, out=tmp_path / "run")
    assert again.simulation.round == 2
    again.start(grid)
    simulation, records = simulated(method)
    assert torch.equal(again.simulation.server.model, simulation.server.model)
    for ours, theirs in zip(again.run.rounds, records, strict=True):
        same_evaluation(ours, theirs)


def test_a_node_keeps_two_versions_of_its_state_and_no_more():
    grid = Losing(app("scaffold"), LOST)
    strategy("scaffold").start(grid)
    held = {
        grid.ids[node]: sorted(context.state.array_records["counterpoise"]) for node, context in grid.contexts.items()
    }
    name = "control-variates/c"
    assert held == {0: [f"3/{name}", f"4/{name}"], 1: [f"4/{name}"], 2: [f"3/{name}", f"4/{name}"]}
