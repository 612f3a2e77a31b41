"""Ready for a network: every message of every method passes through bytes, and a node keeps nothing."""

import copy
import random

import pytest
import torch
from helpers import ALL_METHODS, assert_close, digits, double, flat
from safetensors.torch import load, save

import counterpoise as cp
from counterpoise.engine import Limits, Server, Simulation, cross_entropy
from counterpoise.engine.backends.interface import Job, select
from counterpoise.engine.backends.perclient import PerClient
from counterpoise.engine.clients.batches import client_keys
from counterpoise.engine.clients.messages import (
    byte_count,
    pack_broadcast,
    pack_letters,
    pack_reply,
    stack_replies,
    template,
    unpack_broadcast,
    unpack_letters,
)
from counterpoise.engine.clients.network import Network
from counterpoise.engine.clients.program import Program, Shared, TrainingResult, by_autograd
from counterpoise.flat import Layout
from counterpoise.local import Local, sgd
from counterpoise.method import Part, Reply
from counterpoise.methods import METHODS, fedavg
from counterpoise.trees import expand

LOCAL = Local(epochs=1, batch=64, optimizer=sgd(0.1, momentum=0.9))
SEED, CLIENTS, ROUNDS = 4, 5, 3


class World:
    """What a server hook may ask, outside the simulator."""

    def __init__(self, round, layout, federation, network):
        self.round, self.layout, self.population, self.local, self.key = round, layout, federation.clients, LOCAL, round
        self.cohort = federation.clients
        self._samples, self._network = federation.probe, network

    @property
    def probe_targets(self):
        return self._samples.targets

    def probe(self, models):
        inputs, _ = self._samples.take(torch.arange(len(self._samples)), models.dtype)
        return torch.stack([self._network(model, inputs) for model in models])


def identity(client):
    """A node's identity has nothing to do with its number, not even the order."""
    return (client * 7919 + 13) % 101 + 1000


def node(method, federation, client, message, round):
    """All that one node does: bytes in, bytes out. What it trains with is made anew each time."""
    shared, letters = unpack_broadcast(load(message)), expand(unpack_letters(load(message)), 1)
    module = cp.models.mlp(federation.shape, 10, hidden=8).double()
    program = Program(method, LOCAL, cross_entropy, by_autograd)
    backend = PerClient(program, module, Layout.of(module), False, 1, torch.float64)
    ids = torch.tensor([client])
    sizes = federation.train.sizes(ids)
    state = {
        p.name: {k: v[None] for k, v in p.client_state(shared.start).items()} for p in method.parts if p.client_state
    }
    job = Job(
        shared,
        federation.base,
        federation.train.rows(ids),
        sizes,
        LOCAL.steps_of(ids, sizes),
        ids,
        client_keys(SEED, round, ids),
        state,
        letters,
    )
    result = TrainingResult(*(select(field, 0) for field in backend.train(job)))
    return save(pack_reply(result, sizes[0], job.steps[0] * LOCAL.passes))


def networked(method, federation, model):
    """Three rounds over bytes."""
    layout = Layout.of(model)
    server = Server(method, flat(model), Limits())
    program = Program(method, LOCAL, cross_entropy, by_autograd)
    rng = random.Random(1)
    for round in range(1, ROUNDS + 1):
        shared = Shared(server.model, server.broadcast(), torch.tensor(LOCAL.lr(round), dtype=torch.float64))
        letters = server.letters([identity(client) for client in range(CLIENTS)])
        messages = [save(pack_broadcast(shared) | pack_letters(select(letters, c))) for c in range(CLIENTS)]
        arrived = list(range(CLIENTS))
        rng.shuffle(arrived)
        replies = {identity(c): load(node(method, federation, c, messages[c], round)) for c in arrived}
        state = {p.name: p.client_state(shared.start) for p in method.parts if p.client_state}
        like = template(program, shared, state, select(letters, 0))
        cohort, misfits = stack_replies(replies, like)
        assert misfits == {}
        assert cohort.ids == tuple(sorted(map(identity, range(CLIENTS))))
        outcome = server.receive(cohort, World(round, layout, federation, Network(model, layout, False, train=False)))
        assert outcome.excluded == {}
    return server


# Clusters go by the clients' numbers, which identities here are not.
@pytest.mark.parametrize("name", [name for name in ALL_METHODS if name != "clusterfedvarp"])
def test_a_run_over_bytes_is_the_simulated_one(name):
    method, federation = METHODS.make(name), digits(CLIENTS, probe=1)
    torch.manual_seed(0)
    model = cp.models.mlp(federation.shape, 10, hidden=8).double()
    server = networked(method, federation, copy.deepcopy(model))
    simulation = Simulation(method, federation, model, local=LOCAL, seed=SEED, engine=double())
    for _ in range(ROUNDS):
        simulation.advance()
    if any(part.client_state for part in method.parts):
        assert all(part.when_lost for part in method.parts if part.client_state)
        assert bool(server.model.isfinite().all())
    else:
        assert_close(server.model, simulation.server.model, simulation.server.model - flat(model), 1e-12)


def counting():
    """A part with a broadcast, reports, a record by identity and state that a node loses."""

    def finish(client, reply):
        told = {"n": client.state["n"], "twice": 2 * reply.update, "base": client.broadcast["base"]}
        return Reply(reply.update, told, {"n": client.state["n"] + 1})

    return Part(
        "counting",
        server_state=lambda start: {"base": start.new_zeros(2)},
        client_record=lambda start: {"seen": start.new_zeros(())},
        client_state=lambda start: {"n": start.new_zeros(())},
        when_lost="it counts from 0 again",
        finish=finish,
        broadcast=lambda state: {"base": state["base"]},
        apply=lambda round: round.but(
            state={"base": round.state["base"] + round.reports["n"].sum() + 1},
            records={"seen": round.records["seen"] + 1},
        ),
    )


def test_state_that_a_node_loses_starts_again_and_the_servers_is_kept_by_identity():
    method, federation = fedavg().adding(local=counting()), digits(CLIENTS)
    server = networked(method, federation, cp.models.mlp(federation.shape, 10, hidden=8).double())
    assert server.state["counting"]["base"].tolist() == [3.0, 3.0]  # every node says 0, in every round
    assert {c: float(server.records["counting"][c]["seen"]) for c in server.records["counting"]} == {
        identity(c): 3.0 for c in range(CLIENTS)
    }
    simulation = Simulation(
        method, federation, cp.models.mlp(federation.shape, 10, hidden=8), local=LOCAL, seed=SEED, engine=double()
    )
    for _ in range(ROUNDS):
        simulation.advance()
    assert simulation.server.state["counting"]["base"].tolist() == [18.0, 18.0]  # here they count: 1 + 6 + 11


# ---------------------------------------------------------------- packing


def test_packing_and_unpacking_are_inverse():
    shared = Shared(
        torch.arange(3.0),
        {"a": {"x": torch.ones(2), "y": torch.zeros(())}, "b": {"x": torch.ones(1)}},
        torch.tensor(0.5),
    )
    packed = pack_broadcast(shared)
    assert set(packed) == {"model", "lr", "broadcast/a/x", "broadcast/a/y", "broadcast/b/x"}
    again = unpack_broadcast(load(save(packed)))
    assert torch.equal(again.start, shared.start)
    assert float(again.lr) == 0.5
    assert {p: {k: v.tolist() for k, v in n.items()} for p, n in again.broadcast.items()} == {
        "a": {"x": [1.0, 1.0], "y": 0.0},
        "b": {"x": [1.0]},
    }
    assert byte_count(packed) == 4 * (3 + 1 + 2 + 1 + 1)


def test_a_reply_does_not_hold_the_clients_state():
    result = TrainingResult(
        torch.ones(3), {"p": {"r": torch.ones(2)}}, {"p": {"secret": torch.ones(5)}}, torch.tensor(1.0)
    )
    assert set(pack_reply(result, torch.tensor(4), torch.tensor(2))) == {"update", "examples", "steps", "report/p/r"}


LIKE = {"update": torch.zeros(3), "examples": torch.tensor(1), "steps": torch.tensor(1), "report/p/r": torch.zeros(2)}


def reply(**changes):
    whole = {
        "update": torch.ones(3),
        "examples": torch.tensor(4),
        "steps": torch.tensor(2),
        "report/p/r": torch.ones(2),
    }
    return {k: v for k, v in (whole | changes).items() if v is not None}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (reply(update=None), "its reply lacks update"),
        (reply(**{"report/p/r": None}), "its reply lacks report/p/r"),
        (reply(extra=torch.ones(1)), "its reply holds extra, which was not asked for"),
        (reply(update=torch.ones(4)), "update has shape [4] and should have [3]"),
        (reply(update=torch.ones(1, 3)), "update has shape [1, 3] and should have [3]"),
        (reply(examples=torch.tensor([4])), "examples has shape [1] and should have []"),
        (reply(update=torch.ones(3, dtype=torch.bool)), "update is not made of real numbers"),
        (reply(update=torch.ones(3, dtype=torch.complex64)), "update is not made of real numbers"),
        (reply(examples=torch.tensor(True)), "examples is not made of real numbers"),
        ({}, "its reply lacks examples"),
    ],
)
def test_a_reply_that_does_not_fit_is_left_out_with_a_reason(bad, reason):
    cohort, reasons = stack_replies({30: reply(), 7: bad, 12: reply(examples=torch.tensor(9))}, LIKE)
    assert reasons == {7: reason}
    assert cohort.ids == (12, 30)
    assert cohort.examples.tolist() == [9.0, 4.0]
    assert cohort.updates.shape == (2, 3)
    assert cohort.reports["p"]["r"].shape == (2, 2)


def test_when_no_reply_fits_the_cohort_is_empty():
    cohort, reasons = stack_replies({1: {}, 2: {}}, LIKE)
    assert (cohort.ids, cohort.updates.shape, set(reasons)) == ((), (0, 3), {1, 2})
    server = Server(fedavg(), torch.zeros(3), Limits())
    outcome = server.receive(cohort, World(1, None, digits(2), None), reasons)
    assert outcome.skipped == "no client could be heard"
    assert set(outcome.excluded) == {1, 2}


def test_a_claim_that_is_not_whole_reaches_the_server_as_it_was_sent():
    cohort, reasons = stack_replies({1: reply(examples=torch.tensor(4.5))}, LIKE)
    assert reasons == {}
    assert cohort.examples.tolist() == [4.5]


def test_replies_arrive_in_the_servers_precision():
    cohort, _ = stack_replies({1: reply(update=torch.ones(3, dtype=torch.float64))}, LIKE)
    assert cohort.updates.dtype == torch.float32
