"""Flower's client mods: LocalDpMod clips and noises the update and nothing else; those that could not work are refused."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from flwr.client import mod as older
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, arrays_size_mod, fixedclipping_mod, message_size_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping
from grids import InProcess
from helpers import ALL_METHODS, blobs, double, small

from counterpoise.engine.clients.messages import template
from counterpoise.errors import CounterpoiseError
from counterpoise.flower import Strategy, client_app
from counterpoise.flower.mods import _list_sent, fit_mods
from counterpoise.flower.records import from_record
from counterpoise.local import Local
from counterpoise.method import Part
from counterpoise.methods import METHODS, fedavg, feddua, krum
from counterpoise.trees import select

FEDERATION = blobs((9, 6, 12, 7), heldout=0.2, proxy=20)
LOCAL = Local(batch=4)


def app(*mods, method="fedavg"):
    return client_app(method, small(), lambda c: FEDERATION.only(c.node_config["partition-id"]), local=LOCAL, mods=mods)


def strategy(**settings):
    return Strategy("fedavg", FEDERATION, model=small(), local=LOCAL, rounds=1, engine=double(), patience=0, **settings)


def sent(*mods):
    """What each client sends in a round, and the run."""
    replies = {}

    def note(message, reply):
        replies[message.content["config"]["client"]] = from_record(reply.content["arrays"])
        return reply

    made = strategy()
    made.start(InProcess(app(*mods), 4, meddle=note))
    return replies, made.run.rounds[0]


def private(norm=1e9, noise=0.0):
    """A mod whose noise has this standard deviation."""
    return LocalDpMod(norm, noise, 1.0, 1.25 / np.exp(0.5))


def test_local_privacy_clips_the_update_and_nothing_else():
    plain, _ = sent()
    clipped, record = sent(private(norm=1e-3))
    assert record.outcome.excluded == {}
    assert "accuracy" in record.clients  # the nodes' evaluation is none of the mod's business
    for client, reply in clipped.items():
        update = plain[client]["update"]
        assert float(update.norm()) > 1e-2
        torch.testing.assert_close(reply["update"], update * (1e-3 / update.norm()), rtol=1e-6, atol=1e-12)
        assert all(torch.equal(reply[name], plain[client][name]) for name in ("examples", "steps"))
        assert reply.keys() == plain[client].keys()


def test_local_privacy_noises_the_update_anew_each_time():
    plain, _ = sent()
    once, again = (sent(private(noise=0.1))[0] for _ in range(2))
    noise = torch.cat([once[client]["update"] - plain[client]["update"] for client in plain])
    assert 0.075 < float(noise.std()) < 0.125
    assert abs(float(noise.mean())) < 0.04
    other = torch.cat([again[client]["update"] - plain[client]["update"] for client in plain])
    assert not torch.allclose(noise, other)


def test_mods_that_only_look_are_let_through():
    plain, _ = sent()
    watched, record = sent(arrays_size_mod, message_size_mod)
    assert record.outcome.excluded == {}
    assert all(torch.equal(watched[client]["update"], reply["update"]) for client, reply in plain.items())


@pytest.mark.parametrize(
    ("mod", "why"),
    [
        (fixedclipping_mod, "it is half of Flower's central privacy"),
        (adaptiveclipping_mod, "it is half of Flower's central privacy"),
        (functools.partial(functools.partial(fixedclipping_mod)), "it is half of Flower's central privacy"),
        (older.secaggplus_mod, "needs each client's update in the clear"),
        (older.LocalDpMod(1.0, 1.0, 1.0, 0.1), "it was made for other messages than ours"),
    ],
)
def test_mods_that_could_not_keep_their_promise_are_refused_when_the_app_is_made(mod, why):
    with pytest.raises(
        CounterpoiseError, match=f"cannot be used here: .*{why}.* For privacy use LocalDpMod of flwr.clientapp"
    ):
        app(mod)


@pytest.mark.parametrize("method", ["scaffold", "feddc"])
def test_local_privacy_is_refused_where_clients_send_more_than_updates(method):
    with pytest.raises(CounterpoiseError, match=f"clients of {method} send .* too. Take a method whose clients send"):
        app(private(), method=method)


@pytest.mark.parametrize("prior", ["cohort", "network", "proxy"])
def test_local_privacy_is_refused_for_a_method_that_needs_a_proxy_set(prior):
    with pytest.raises(CounterpoiseError, match=r"clients of feddua:fedavg send .*counts/branch.* too. Take a method"):
        fit_mods([private()], feddua(prior=prior))


def test_local_privacy_is_refused_if_what_clients_send_cannot_be_checked():
    def begin(client):
        raise ValueError("Ten layers are needed.")

    with pytest.raises(
        CounterpoiseError, match=r"clients of mine send could not be checked.* Ten layers are needed. Ta"
    ):
        fit_mods([private()], fedavg().adding("mine", local=Part("mine", begin=begin)))


def test_mods_may_come_from_a_generator():
    assert len(fit_mods((mod for mod in [private()]), fedavg())) == 1


def test_local_privacy_is_allowed_for_a_rule_that_needs_many_clients():
    assert len(fit_mods([private()], krum(faulty=100))) == 1


@pytest.mark.parametrize("method", ALL_METHODS)
def test_what_clients_of_a_method_report_is_known_beforehand(method):
    federation = blobs((9,) * 12, probe=1, proxy=9)
    made = Strategy(METHODS.make(method), federation, model=small(), engine=double()).simulation
    state = {name: store.initial for name, store in made.client_state.items()}
    letters = select(made.server.letters([0]), 0)
    expected = template(made.trainer.program, made.open().shared, state, letters).keys()
    assert set(_list_sent(METHODS.make(method))) == expected


def test_reports_that_could_not_be_foreseen_do_not_leave_the_node(monkeypatch, caplog):
    monkeypatch.setattr("counterpoise.flower.mods._list_sent", lambda method: ())
    made = Strategy("scaffold", FEDERATION, model=small(), local=LOCAL, rounds=1, engine=double(), patience=0)
    with pytest.raises(CounterpoiseError):
        made.start(InProcess(app(private(), method="scaffold"), 4))
    assert any("clients of scaffold send" in message for message in caplog.messages)


def test_noise_that_a_wrapper_adds_to_the_servers_model_would_be_lost_and_is_refused():
    made = strategy()
    wrapped = DifferentialPrivacyClientSideFixedClipping(made, 1.0, 1.0, 4)
    with pytest.raises(CounterpoiseError, match="The arrays given are not this strategy's model"):
        wrapped.start(InProcess(app(), 4), made.arrays(), num_rounds=1)


@pytest.mark.parametrize("mods", [["x"], LocalDpMod(1.0, 0.1, 1.0, 1e-5), 3], ids=["a name", "no list", "a number"])
def test_what_is_no_list_of_mods_is_told(mods):
    with pytest.raises(CounterpoiseError, match="mods must be a list of Flower mods"):
        client_app("fedavg", small(), lambda context: FEDERATION, mods=mods)
