"""A client's state counts only if the server took its reply in; otherwise the client goes back to the one before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import BACKENDS, H, M, descend, points

from counterpoise.engine.clients.messages import pack_accepted, unpack_accepted
from counterpoise.method import Part, Reply
from counterpoise.methods import avg, ditto, scaffold
from counterpoise.runs.checkpoint import Checkpoint


def tally(name="tally", **hooks):
    """A part whose state on a client is how many of its rounds counted."""
    return Part(
        name,
        client_state=lambda start: {"n": start.new_zeros(())},
        when_lost="it counts from 0 again",
        finish=lambda client, reply: Reply(reply.update, {}, {"n": client.state["n"] + 1}),
        **hooks,
    )


def counted(simulation, name="tally"):
    return [float(simulation.client_state[name][i]["n"]) for i in range(2)]


def lost(*rounds):
    """The first client's replies of some rounds never arrive."""
    return lambda round, cohort: cohort.keep(torch.tensor([round not in rounds or c != 0 for c in cohort.ids]))


def broken(*rounds):
    """The first client's updates of some rounds are not finite, so that they are not admitted."""

    def adversary(round, cohort):
        bad = torch.tensor([[round in rounds and client == 0] for client in cohort.ids])
        return replace(cohort, updates=torch.where(bad, torch.nan, cohort.updates))

    return adversary


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fault", [lost, broken])
def test_only_replies_that_were_taken_in_count(fault, backend):
    simulation = descend(avg().adding(local=tally()), H, M, 1, backend=backend, adversary=fault(2, 3))
    heard = []
    for _ in range(4):
        simulation.advance()
        heard.append((counted(simulation), simulation.server.accepted_rounds("tally", [0, 1])))
    assert heard == [([1, 1], [1, 1]), ([1, 2], [1, 2]), ([1, 3], [1, 3]), ([2, 4], [4, 4])]


def test_a_part_follows_its_own_half_on_the_server():
    """Trust excludes the first client: what acted before has used its reply, what comes after has not."""
    before = tally("before", apply=lambda round: round)
    after = tally("after", apply=lambda round: round)
    trust = tally("trust", apply=lambda round: round.but(excluded={0: "no"}))
    simulation = descend(avg().adding(local=before, trust=trust, update=after), H, M, 1)
    simulation.advance()
    assert {name: counted(simulation, name) for name in ("before", "trust", "after")} == {
        "before": [1, 1],
        "trust": [0, 1],
        "after": [0, 1],
    }


def test_in_a_skipped_round_only_what_learned_of_clients_goes_on():
    learns, follows = tally("learns", apply=lambda round: round), tally("follows")
    skips = tally("skips", apply=lambda round: round.skip("not today"))
    simulation = descend(avg().adding(trust=learns, local=follows, combine=skips), H, M, 1)
    assert simulation.advance().outcome.skipped == "not today"
    assert {name: counted(simulation, name) for name in ("learns", "follows", "skips")} == {
        "learns": [1, 1],
        "follows": [0, 0],
        "skips": [0, 0],
    }
    assert simulation.server.accepted_rounds("follows", [0, 1]) == [0, 0]


def test_scaffolds_variate_stays_the_mean_of_its_clients():
    simulation = descend(scaffold(), H, M, [10, 10], start=3.0, adversary=lost(1, 2, 4))
    own = simulation.client_state["control-variates"]
    for _ in range(6):
        simulation.advance()
        c = float(simulation.server.state["control-variates"]["c"])
        assert c == pytest.approx(np.mean([float(own[i]["c"]) for i in range(2)]), abs=1e-12)
        assert c != 0


def test_a_personal_model_goes_back_too():
    """Ditto from w: one step to v; a lost reply leaves it there."""
    simulation = descend(ditto(1.0), H, M, 1, start=3.0, lr=0.05, adversary=lost(2))
    points(simulation, 1)
    own = simulation.client_state["personal-model"]
    first = 3.0 - 0.05 * H[0] * (3.0 - M[0])
    assert float(own[0]["v"]) == pytest.approx(first, abs=1e-14)
    w = points(simulation, 1)[0]
    assert float(own[0]["v"]) == pytest.approx(first, abs=1e-14)
    points(simulation, 1)
    assert float(own[0]["v"]) == pytest.approx(first - 0.05 * (H[0] * (first - M[0]) + first - w), abs=1e-14)


def test_the_rounds_accepted_are_kept_with_the_run(tmp_path):
    settings = {"start": 3.0, "adversary": lost(2)}
    simulation, again = (descend(scaffold(), H, M, 2, **settings) for _ in range(2))
    points(simulation, 2)
    Checkpoint(tmp_path, "run").save(simulation, "running")
    Checkpoint(tmp_path, "run").load(again)
    assert again.server.accepted_rounds("control-variates", [0, 1]) == [1, 2]
    assert points(again, 2) == points(simulation, 2)


def test_the_rounds_accepted_travel_and_are_counted():
    rounds = {"tally": 7, "other": 0}
    assert unpack_accepted(pack_accepted(rounds) | {"model": torch.zeros(3)}) == rounds
    one, other = (descend(method, H, M, 1).advance().bytes_down for method in (avg().adding(local=tally()), avg()))
    assert one - other == 2 * 8  # two clients
