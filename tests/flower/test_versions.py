"""A server and a node that do not run the same code: what differs is told in a sentence, and nothing is trained wrongly."""

from __future__ import annotations

import logging
import sys

import numpy as np
import pytest
from flwr.app import Array
from grids import InProcess
from helpers import blobs, double, small
from torch import nn

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.absence import FAILED
from counterpoise.flower import Strategy, client_app
from counterpoise.flower.node import _in_a_sentence
from counterpoise.flower.terms import VERSION, show_version
from counterpoise.local import Local, sgd
from counterpoise.methods import METHODS

LOCAL = Local(epochs=1, batch=4, optimizer=sgd(0.05))
FEDERATION = blobs((9, 6, 12, 7), heldout=0.2, test=(np.zeros((3, 6)), np.array([0, 1, 2])))
OURS = show_version(VERSION)
DIFFER = f"This node runs counterpoise {OURS}, and the server 9.8.7: install one version on both."
CLIENT = 2


def hold(context):
    return FEDERATION.only(context.node_config["partition-id"])


def app(model=None, data=hold):
    return client_app(METHODS.make("scaffold"), small() if model is None else model, data, local=LOCAL)


def run(node, **settings):
    """Two rounds in which `node` answers for one of the clients."""
    same = app()
    grid = InProcess(lambda m, c: (node if c.node_config["partition-id"] == CLIENT else same)(m, c), 4, **settings)
    made = Strategy(
        METHODS.make("scaffold"), FEDERATION, model=small(), rounds=2, local=LOCAL, engine=double(), patience=0
    )
    made.start(grid)
    return made


def newer(change, node=None):
    """A node that a server of another version calls: what is sent is changed on the way."""
    own = node or app()

    def answer(message, context):
        message.content["config"]["version"] = "9.8.7"
        change(message.content)
        return own(message, context)

    return answer


def renamed(content):
    content["config"]["draws"] = content["config"].pop("seed")


def novel(content):
    content["arrays"]["novel/thing"] = Array(np.zeros(3))


def told(caplog):
    return {m for m in caplog.messages if "counterpoise" in m}


def test_one_version_is_not_worth_a_word(caplog):
    made = run(app())
    assert not told(caplog)
    assert not any(record.outcome.excluded for record in made.run.rounds)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (renamed, f"{DIFFER} It failed with KeyError: 'seed'."),
        (novel, f"The server's message holds 'novel', which this node does not know. {DIFFER}"),
        (lambda content: content["arrays"].pop("lr"), f"{DIFFER} It failed with KeyError: 'lr'."),
    ],
)
def test_a_message_of_another_version_that_cannot_be_read_is_told_with_both_versions(change, sentence, caplog):
    made = run(newer(change))
    assert [record.outcome.excluded for record in made.run.rounds] == [{CLIENT: FAILED}] * 2
    assert f"client {CLIENT} failed to train: {sentence}" in caplog.messages
    assert DIFFER not in caplog.messages


def test_a_node_of_another_version_that_reads_the_message_takes_part_and_is_told(caplog):
    made = run(newer(lambda content: None))
    assert not any(record.outcome.excluded for record in made.run.rounds)
    assert told(caplog) == {DIFFER}


def test_a_server_that_does_not_tell_its_version_runs_another(caplog):
    run(newer(lambda content: content["config"].pop("version")))
    assert told(caplog) == {DIFFER.replace("9.8.7", "another version")}


def test_what_a_user_adds_to_a_message_of_the_same_version_is_let_through():
    def answer(message, context):
        novel(message.content)
        return app()(message, context)

    assert not any(record.outcome.excluded for record in run(answer).run.rounds)


def test_data_that_another_version_cannot_load_stay_on_the_node_and_the_versions_are_told(caplog):
    def broken(context):
        raise TypeError("from_datasets() got an unexpected keyword argument, /data/secret.npz")

    run(newer(lambda content: None, app(data=broken)))
    sentence = f"This node could not load its data (TypeError); its own log says why. {DIFFER}"
    assert f"client {CLIENT} failed to train: {sentence}" in caplog.messages
    assert "secret" not in caplog.text


def test_a_reply_of_another_version_that_cannot_be_used_tells_the_version(caplog):
    def answer(request, reply):
        if request.content["config"]["client"] == CLIENT:
            reply.content["metrics"]["version"] = [9, 8, 7]
            reply.content["tensors"] = reply.content.pop("arrays")
        return reply

    made = run(app(), meddle=answer)
    assert made.run.rounds[0].outcome.excluded == {CLIENT: "its reply lacks the record arrays"}
    assert [m.startswith(f"client {CLIENT} runs counterpoise 9.8.7, and the server {OURS}.") for m in told(caplog)] == [
        True
    ]


def test_an_app_that_cannot_be_loaded_on_a_node_tells_its_version_without_a_traceback(monkeypatch):
    with pytest.raises(CounterpoiseError) as server:
        client_app("scaffolding", small(), hold)
    assert "counterpoise" not in str(server.value)
    monkeypatch.setattr(sys, "argv", ["/environment/bin/flwr-clientapp"])
    flower = logging.getLogger("flwr")
    monkeypatch.setattr(flower, "filters", [])
    with pytest.raises(CounterpoiseError) as node:
        client_app("scaffolding", small(), hold)
    assert str(node.value) == (
        f"{server.value} This node runs counterpoise {OURS}: if the server runs another, install that."
    )
    assert flower.filters == [_in_a_sentence]


class Swapped(nn.Module):
    """The server's model, with as many numbers, but they lie in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(5, 3), nn.Linear(6, 5)

    def forward(self, inputs):
        return self.last(self.first(inputs).tanh())


def test_a_model_of_the_same_size_with_other_layers_is_refused(caplog):
    made = run(app(Swapped()))
    assert [record.outcome.excluded for record in made.run.rounds] == [{CLIENT: FAILED}] * 2
    assert (
        f"client {CLIENT} failed to train: The model on this node has other layers than the server's, or has them in "
        "another order, although both have 53 parameters. Install the same version of the code that makes the model on "
        "all machines." in caplog.messages
    )


def test_a_model_that_cannot_be_made_on_a_node_is_told_in_a_sentence(caplog, tmp_path):
    def load(shape, classes):
        (tmp_path / "weights.pt").read_bytes()

    made = run(app(load))
    assert [record.outcome.excluded for record in made.run.rounds] == [{CLIENT: FAILED}] * 2
    assert (
        f"client {CLIENT} failed to train: This node could not make the model (FileNotFoundError: [Errno 2] No such file "
        f"or directory: '{tmp_path / 'weights.pt'}'); its own log says more." in caplog.messages
    )
