"""One node cannot speak for another, nor silence it: hostile nodes on the code of Flower's SuperLink."""

from __future__ import annotations

import datetime
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from grids import InProcess
from links import Link, saying, spoiled

from counterpoise.errors import CounterpoiseError
from counterpoise.flower import wire
from counterpoise.flower.replies import CONFIG, answers
from counterpoise.flower.wire import exchange, with_secret

SITES = ("site-0", "site-1", "site-2")
VICTIM, HOSTILE = "site-1", "site-2"


class Round:
    """A round of one message to each site: the honest answer with their name, the hostile does what it likes."""

    def __init__(self, link) -> None:
        self.link = link
        self.nodes = {name: self.link.node(name) for name in SITES}
        self.link.turn = self.turn
        self.attack = lambda node, message: None
        self.slow = 0

    def turn(self):
        for name in (HOSTILE, *SITES[:-1]):  # the hostile one is always first
            if name == VICTIM and self.slow > 0:
                self.slow -= 1
            elif (message := self.nodes[name].pull()) is not None:
                self.attack(self.nodes[name], message) if name == HOSTILE else self.nodes[name].push(
                    said(message, name)
                )

    def heard(self, timeout=20.0, most=100_000):
        """What each site is taken to have said."""
        sent = {
            name: Message(RecordDict({CONFIG: with_secret({"round": 1})}), node.node.node_id, MessageType.TRAIN)
            for name, node in self.nodes.items()
        }
        replies = exchange(self.link.grid, sent.values(), timeout, most)
        asked = {message.metadata.message_id: name for name, message in sent.items()}
        found = {}
        for name, reply in answers(replies, asked):
            assert name not in found
            found[name] = reply.content["metrics"]["said"] if reply.has_content() else "an error"
        return found

    @property
    def victims(self):
        return self.nodes[VICTIM].node.node_id


def content(name, **more):
    return RecordDict({"metrics": MetricRecord({"said": SITES.index(name) if name in SITES else 99}), **more})


def said(message, name):
    return Message(content(name), reply_to=message)


@pytest.fixture
def round(monkeypatch):
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr("counterpoise.flower.wire.time", clock)
    return Round(Link())


HONEST = {"site-0": 0, "site-1": 1}


class Networked(InProcess):
    """A grid that counterpoise does not know."""

    in_process = False

    def send_and_receive(self, messages, *, timeout=None):
        pytest.fail("it was trusted")


def test_a_grid_of_unknown_senders_is_refused():
    grid = Networked(None, 1)
    message = Message(RecordDict(), next(iter(grid.contexts)), MessageType.TRAIN)
    with pytest.raises(
        CounterpoiseError, match=r"through Networked may come from anybody.*Run the app there, or, if all"
    ):
        exchange(grid, [message], 1.0, 1000)


def test_everybody_is_heard(round):
    round.attack = lambda node, message: node.push(said(message, HOSTILE))
    assert round.heard() == HONEST | {"site-2": 2}


def test_a_node_that_names_another_as_its_source_speaks_for_itself(round):
    lie = lambda message: saying(said(message, HOSTILE), content("lie"), src_node_id=round.victims)  # noqa: E731
    round.attack = lambda node, message: node.push(lie(message), src_node_id=node.node.node_id)
    assert round.heard() == HONEST | {"site-2": 99}


def test_a_node_that_claims_to_answer_another_message_speaks_for_nobody(round, caplog):
    lie = lambda message: saying(said(message, HOSTILE), content("lie"), reply_to_message_id="0" * 64)  # noqa: E731
    round.attack = lambda node, message: node.push(lie(message), reply_to_message_id=message.metadata.message_id)
    assert round.heard() == HONEST
    assert "a reply is left out: it claims to answer a different message" in caplog.messages


def test_nobody_is_answered_for_by_a_node_that_does_not_know_its_message(round):
    """It knows all that is not secret of its own message, and tries it with the other's number."""

    def guess(node, message):
        likely = saying(message, message.content, dst_node_id=round.victims)
        likely.metadata.__dict__["_message_id"] = likely.object_id
        node.push(saying(said(likely, "lie"), content("lie")))
        node.push(said(message, HOSTILE))

    round.attack, round.slow = guess, 1
    assert round.heard() == HONEST | {"site-2": 2}


def test_equal_messages_have_ids_of_their_own(round, monkeypatch):
    monkeypatch.setattr("flwr.app.message.message.now", lambda: datetime.datetime(2026, 1, 1))
    one, other = (Message(RecordDict({CONFIG: with_secret({"round": 1})}), 5, MessageType.TRAIN) for _ in range(2))
    assert one.metadata.created_at == other.metadata.created_at
    assert one.object_id != other.object_id
    assert len(one.content[CONFIG]["secret"]) == 32  # 128 bits


def test_a_reply_in_very_many_pieces_ends_with_the_round(round, monkeypatch):
    """Each piece takes a tenth of a second to fetch, and all of them far longer than the round waits."""
    many = ArrayRecord({str(i): Array(np.array([i])) for i in range(400)})
    round.attack = lambda node, message: node.push(Message(content(HOSTILE, many=many), reply_to=message))
    begun, pull = wire.time.monotonic(), round.link.grid._runtime_client.PullObject

    def slow(*given, **named):
        wire.time.sleep(0.1)
        return pull(*given, **named)

    monkeypatch.setattr(round.link.grid._runtime_client, "PullObject", slow)
    assert round.heard(timeout=20.0, most=10**9) == HONEST
    assert wire.time.monotonic() - begun < 20 + 2 * 10


def test_a_reply_that_cannot_be_read_costs_nobody_elses(round, caplog):
    round.attack = lambda node, message: node.push(said(message, HOSTILE), spoil=spoiled)
    assert round.heard() == HONEST
    assert "a reply is left out: it cannot be read (DecodeError)" in caplog.messages


def test_a_reply_that_never_comes_whole_costs_nobody_elses(round):
    round.attack = lambda node, message: node.push(said(message, HOSTILE), send=0)
    round.slow = 2
    assert round.heard(timeout=1.0) == HONEST


def test_who_answered_in_time_is_heard_although_the_server_was_held_up(round):
    """The other's reply comes when the time is up, while the server is busy with the hostile one's."""
    round.attack = lambda node, message: node.push(said(message, HOSTILE))
    assert round.heard(timeout=0.0) == HONEST | {"site-2": 2}


def test_a_reply_that_is_too_large_is_not_read(round, caplog):
    large = lambda message: Message(  # noqa: E731
        content(HOSTILE, arrays=ArrayRecord({"a": Array(np.zeros(50_000))})), reply_to=message
    )
    round.attack = lambda node, message: node.push(large(message))
    assert round.heard() == HONEST
    assert "a reply is left out: it is larger than the 100000 bytes allowed" in caplog.messages


def test_messages_that_a_node_sends_to_the_server_unasked_cost_nobodys_reply(round, caplog):
    """A SuperLink hands the server whatever a node addresses to it, together with others' replies."""

    def flood(node, message):
        order = saying(message, content("lie"), src_node_id=1, dst_node_id=1)
        node.push(order, spoil=spoiled)
        node.push(said(message, HOSTILE))

    round.attack = flood
    assert round.heard() == HONEST | {"site-2": 2}
    assert "1 messages are left out: they do not answer any message that was sent" in caplog.messages


def test_a_node_that_answers_twice_is_heard_once(round):
    def twice(node, message):
        node.push(said(message, HOSTILE))
        node.push(said(message, "lie"))

    round.attack = twice
    assert round.heard() == HONEST | {"site-2": 2}


def test_the_parts_that_messages_share_cannot_be_taken_from_another(round):
    """Dropping its own message again and again, and all that it knows of, leaves the other's whole."""

    def drop(node, message):
        for part in [message.metadata.message_id, message.content.object_id, message.content[CONFIG].object_id]:
            node.confirm(round.link.run, part)
        node.push(said(message, HOSTILE))

    round.attack, round.slow = drop, 1
    assert round.heard() == HONEST | {"site-2": 2}
