"""Hostile and broken nodes: whatever they send, they lose their own place in the round and nobody else's."""

from __future__ import annotations

import io
import logging
import random

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity
from grids import InProcess
from helpers import blobs, digits, double, small
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import FixedWorld, server

import counterpoise as cp
from counterpoise.engine import Evaluation, Limits
from counterpoise.errors import CounterpoiseError
from counterpoise.federation.absence import FAILED, SILENT
from counterpoise.flower import Strategy, client_app
from counterpoise.flower.node import _in_a_sentence
from counterpoise.flower.records import Unreadable, from_record, to_record
from counterpoise.flower.replies import read_metrics, sift_replies
from counterpoise.local import Local
from counterpoise.methods import METHODS, fedavg

SIZE, ROUND = 3, 5
LIKE = {
    "update": torch.zeros(SIZE, dtype=torch.float64),
    "examples": torch.ones((), dtype=torch.int64),
    "steps": torch.ones((), dtype=torch.int64),
}
BAD = 103


def sent_to(node):
    """The id of the message that a node was sent."""
    return f"the message to {node}"


ASKED = {sent_to(100 + client): client for client in range(4)}


def request(node, id=None):
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    message = Message(RecordDict(), node, "train", group_id=str(ROUND))
    message.metadata.__dict__["_message_id"] = id or sent_to(node)
    return message


def arrays(update=(1.0, 2.0, 3.0), examples=10, steps=2):
    return {"update": np.array(update), "examples": np.array(examples), "steps": np.array(steps)}


def records(named, metrics=None, **more):
    held = ArrayRecord({name: a if isinstance(a, Array) else Array(a) for name, a in named.items()})
    return RecordDict({"arrays": held, "metrics": MetricRecord(metrics or {"round": ROUND, "loss": 1.0})} | more)


def reply(content, node=BAD):
    return Message(content, reply_to=request(node))


HONEST = [reply(records(arrays((1.0 + c, 2.0, 3.0))), 100 + c) for c in range(3)]


def raw(data: bytes, dtype="float64", shape=(SIZE,)) -> Array:
    return Array(dtype=dtype, shape=shape, stype="numpy.ndarray", data=data)


def claiming(shape, dtype="<f8", numbers=b"\0" * 24) -> Array:
    """An array whose header claims another shape or type than its numbers have."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return raw(stream.getvalue() + numbers)


MALFORMED = {
    "wrong shape": (records(arrays((1.0, 2.0))), "update has shape [2] and should have [3]"),
    "NaN": (records(arrays((1.0, np.nan, 3.0))), "its update holds NaN or infinity"),
    "infinity": (records(arrays((1.0, np.inf, 3.0))), "its update holds NaN or infinity"),
    "missing array": (records({k: v for k, v in arrays().items() if k != "steps"}), "its reply lacks steps"),
    "extra array": (records(arrays() | {"more": np.zeros(1)}), "its reply holds more, which was not asked for"),
    "missing record": (RecordDict({"metrics": MetricRecord({"round": ROUND})}), "its reply lacks the record arrays"),
    "no metrics": (RecordDict({"arrays": records(arrays())["arrays"]}), "its reply lacks the record metrics"),
    "other kind": (
        RecordDict({"arrays": ConfigRecord(), "metrics": MetricRecord({"round": ROUND})}),
        "its reply lacks the record arrays",
    ),
    "extra record": (
        records(arrays(), more=ConfigRecord()),
        "its reply holds the record more, which was not asked for",
    ),
    "no data": (records(arrays(examples=0)), "it claims no data"),
    "negative data": (records(arrays(examples=-3)), "it claims no data"),
    "half a sample": (records(arrays(examples=2.5)), "the data count it claims is not whole"),
    "no number": (records(arrays(examples=np.nan)), "the data count it claims is not a number"),
    "absurd count": (records(arrays(examples=2.0**60)), f"it claims more than the {2**53} samples allowed"),
    "unsigned absurd count": (
        records(arrays(examples=np.uint64(2**64 - 1))),
        f"it claims more than the {2**53} samples allowed",
    ),
    "no steps": (records(arrays(steps=0)), "the number of steps it reports is not a positive whole number"),
    "absurd steps": (
        records(arrays(steps=2.0**52)),
        "it reports over 50 times as many steps as it was asked for",
    ),
    "many counts": (records(arrays(examples=[1, 2])), "examples has shape [2] and should have []"),
    "another round": (records(arrays(), {"round": ROUND - 1}), f"its reply is not for round {ROUND}"),
    "no round": (records(arrays(), {"loss": 1.0}), f"its reply is not for round {ROUND}"),
    "a list for a round": (records(arrays(), {"round": [ROUND]}), f"its reply is not for round {ROUND}"),
    "very large": (
        records(arrays() | {"update": np.zeros(10_000)}),
        "its reply takes 80400 bytes, and at most 16464 are allowed",
    ),
    "very long": (
        records(arrays((1e9, 0.0, 0.0))),
        "its update is over 50 times as long as the cohort's median",
    ),
    "no array": (records(arrays() | {"update": raw(b"nonsense")}), "update is not an array in NumPy's format"),
    "cut short": (
        records(arrays() | {"update": raw(Array(np.zeros(3)).data[:-1])}),
        "update is cut short or too long for its shape",
    ),
    "a shape beyond memory": (
        records(arrays() | {"update": claiming((10**12,))}),
        "update is cut short or too long for its shape",
    ),
    "a negative shape": (
        records(arrays() | {"update": claiming((-3, -1))}),
        "update is cut short or too long for its shape",
    ),
    "more numbers than there are, and none": (
        records(arrays() | {"update": claiming((0, 2**70), numbers=b"")}),
        "update is not an array in NumPy's format",
    ),
    "more dimensions than there are": (
        records(arrays() | {"update": claiming((1,) * 100, numbers=b"\0" * 8)}),
        "update is not an array in NumPy's format",
    ),
    "many dimensions": (
        records(arrays() | {"update": claiming((1,) * 64, numbers=b"\0" * 8)}),
        f"update has shape [{'1, ' * 26}1 and should have [3]",
    ),
    "truth values for a shape": (
        records(arrays() | {"update": claiming((True, 3))}),
        "update is not an array in NumPy's format",
    ),
    "objects": (records(arrays() | {"update": claiming((3,), "|O")}), "update is not made of real numbers"),
    "text": (records(arrays() | {"update": claiming((3,), "<U2")}), "update is not made of real numbers"),
    "complex": (records(arrays() | {"update": np.zeros(3, complex)}), "update is not made of real numbers"),
    "truth values": (records(arrays() | {"update": np.zeros(3, bool)}), "update is not made of real numbers"),
}


def received(replies):
    """The server's model and outcome after a round with these replies."""
    ours = server(fedavg(), SIZE)
    ours.limits = Limits()
    cohort, reasons, *_ = sift_replies(replies, ASKED, ROUND, LIKE)
    return ours.receive(cohort, FixedWorld(SIZE, ROUND), reasons), ours.model


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_reply_is_left_out_with_its_reason(kind):
    content, reason = MALFORMED[kind]
    outcome, model = received([*HONEST, reply(content)])
    assert outcome.excluded == {3: reason}
    assert model.tolist() == [2.0, 2.0, 3.0]  # the mean of the honest


def test_a_node_that_replies_twice_or_fails_or_is_silent_is_left_out():
    good = reply(records(arrays()))
    assert received([*HONEST, good, good])[0].excluded == {3: "it replied more than once"}
    assert received(HONEST)[0].excluded == {3: SILENT}
    failed = Message(Error(2, "out of memory"), reply_to=request(BAD))
    assert received([*HONEST, failed])[0].excluded == {3: FAILED}


def test_a_sentence_of_ours_is_told_without_the_name_of_its_class(caplog):
    for error in (CounterpoiseError("This node holds no data."), OSError("the disk is gone")):
        reason = f"{type(error)}:<'{error}'>"  # as a SuperNode writes it
        assert received([*HONEST, Message(Error(2, reason), reply_to=request(BAD))])[0].excluded == {3: FAILED}
    assert caplog.messages == [
        "client 3 failed to train: This node holds no data.",
        "client 3 failed to train: <class 'OSError'>:<'the disk is gone'>",
    ]


def test_strangers_and_the_superlink_speak_for_nobody(caplog):
    gone = Message(Error(ErrorCode.NODE_UNAVAILABLE, "node unavailable"), reply_to=request(1, sent_to(BAD)))
    stranger = reply(records(arrays((9.0, 9.0, 9.0))), 999)
    with caplog.at_level(logging.INFO):
        outcome, model = received([*HONEST, gone, stranger])
    assert outcome.excluded == {3: SILENT}
    assert outcome.claims.keys() == {0, 1, 2}
    assert model.tolist() == [2.0, 2.0, 3.0]
    assert "a reply is left out: it answers no message of this round" in caplog.messages
    assert "client 3 could not be heard: node unavailable" in caplog.messages


@pytest.mark.parametrize("victim", [100, 103])
def test_a_reply_counts_for_the_message_it_answers_whoever_it_says_it_is_from(victim):
    """Node 102 names another as its source: it neither speaks for it nor costs it its place."""
    lie = Message(records(arrays((9.0, 9.0, 9.0))), reply_to=request(victim, sent_to(102)))
    assert lie.metadata.src_node_id == victim
    outcome, model = received([HONEST[0], HONEST[1], lie, reply(records(arrays((1.0, 2.0, 3.0))))])
    assert outcome.excluded == {}
    assert model.tolist() == [(1.0 + 2.0 + 9.0 + 1.0) / 4, (2.0 * 3 + 9.0) / 4, (3.0 * 3 + 9.0) / 4]
    guess = Message(records(arrays((9.0, 9.0, 9.0))), reply_to=request(victim, "a guess"))
    assert received([*HONEST, guess, reply(records(arrays()))])[0].excluded == {}


def test_claims_that_are_all_zero_skip_the_round():
    nothing = [reply(records(arrays(examples=0)), node) for node in range(100, 104)]
    outcome, model = received(nothing)
    assert outcome.skipped == "no reply could be used: 4 of 4 because it claims no data"
    assert set(outcome.excluded.values()) == {"it claims no data"}
    assert model.tolist() == [0.0, 0.0, 0.0]


def test_other_real_types_and_layouts_are_read_as_they_are():
    fortran = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    big_endian = np.arange(3, dtype=">f4")
    read = from_record(ArrayRecord({"f": Array(fortran), "b": Array(big_endian), "u": Array(np.array(7, np.uint16))}))
    assert torch.equal(read["f"], torch.arange(6.0, dtype=torch.float64).reshape(2, 3))
    assert torch.equal(read["b"], torch.arange(3, dtype=torch.float32))
    assert read["u"] == 7


def test_a_name_chosen_by_a_node_cannot_break_the_record():
    with pytest.raises(Unreadable, match=r"^x\\nx\\n[xn\\]* is not an array"):
        from_record(ArrayRecord({"x\n" * 1000: raw(b"")}))
    with pytest.raises(Unreadable, match=r"^Größe — \\x1b\[2J\\u202e is not an array"):
        from_record(ArrayRecord({"Größe — \x1b[2J\u202e": raw(b"")}))


def test_tensors_pass_as_they_are():
    tensors = {"a": torch.randn(2, 3), "b": torch.tensor(3), "c": torch.randn(0, dtype=torch.float64)}
    back = from_record(to_record(tensors))
    assert all(torch.equal(back[name], t) and back[name].dtype == t.dtype for name, t in tensors.items())


def test_an_evaluation_that_makes_no_sense_is_left_out(caplog):
    def found(metrics, node):
        return reply(RecordDict({"metrics": MetricRecord(metrics)}), node)

    replies = [
        found({"round": ROUND, "accuracy": 0.5, "a name of its own\x1b[2J": 1.0}, 102),
        found({"round": ROUND, "accuracy": 0.25}, 100),
        found({"round": ROUND - 1, "accuracy": 0.1}, 101),
        found({"round": ROUND, "accuracy": float("nan")}, 103),
    ]
    ranges = {"accuracy": (0.0, 1.0), "own": (-np.inf, np.inf)}
    assert read_metrics(replies, ASKED, ROUND, ranges) == {"accuracy": {0: 0.25, 2: 0.5}}
    broken = reply(RecordDict({"accuracy": MetricRecord({"round": ROUND})}), 100)
    assert read_metrics([broken], ASKED, ROUND, ranges) == {}
    odd = [{"accuracy": 50.0, "own": 50.0}, {"accuracy": -0.1}, {"own": float("inf")}, {"accuracy": 1.0, "own": -3.0}]
    replies = [found({"round": ROUND} | values, 100 + client) for client, values in enumerate(odd)]
    assert read_metrics(replies, ASKED, ROUND, ranges) == {"accuracy": {3: 1.0}, "own": {0: 50.0, 3: -3.0}}
    assert "round 5: accuracy of client 0 is left out: 50.0" in caplog.messages


# ---------------------------------------------------------------- thousands of malformed replies

NUMBERS = (0.0, -1.0, 1.5, 3.0, 1e300, -1e300, 2.0**53, 2.0**54, np.nan, np.inf, -np.inf, 1e-320)
TYPES = ("f8", "f4", "f2", "i8", "i1", "u8", "u1", ">f8", ">i2", "c16", "?", "U3", "M8[s]", "V4")
SHAPES = ((), (1,), (2,), (3,), (3, 1), (0,), (1, 3))
CLAIMED = ((3,), (-1,), (2**40,), (2**62, 4), (3, 0), (0, 2**62), (2**70, 0), (1,) * 99, (True,))
NAMES = ("update", "examples", "steps", "report/x/y", "", "lr", "\n" * 500)
HOSTILE = range(200, 250)
"""Nodes that send what they like, beside as many honest ones and one."""


def odd_array(rng):
    how = rng.choice(["bytes", "array", "header", "cut"])
    if how == "bytes":
        return raw(rng.randbytes(rng.randrange(40)), rng.choice(["float64", "x"]), (rng.randrange(9),))
    if how == "header":
        return claiming(rng.choice(CLAIMED), numbers=rng.randbytes(rng.choice([0, 8, rng.randrange(30)])))
    shape, dtype = rng.choice(SHAPES), np.dtype(rng.choice(TYPES))
    with np.errstate(all="ignore"):
        made = np.full(shape, rng.choice(NUMBERS)).astype(dtype) if dtype.kind in "fiuc?" else np.zeros(shape, dtype)
    whole = Array(made)
    return raw(whole.data[: rng.randrange(len(whole.data))]) if how == "cut" else whole


def malformed(rng, node):
    """The replies of a node that does what it likes: none, one or two, mostly near to a good one."""
    if rng.random() < 0.1:
        return rng.choice([[], [Message(Error(rng.randrange(9), rng.choice(["", "gone\n"])), reply_to=request(node))]])
    named = dict(arrays())
    for _ in range(rng.randrange(4)):
        named[rng.choice(NAMES)] = odd_array(rng)
    if rng.random() < 0.2:
        named.pop(rng.choice(NAMES), None)
    metrics = {"round": ROUND}
    for name in rng.sample(["round", "loss", "more"], rng.randrange(3)):
        metrics[name] = rng.choice([ROUND, -9, 2**62, np.nan, 1.5, [], [1.0, np.inf], [ROUND]])
    content = records(named, metrics)
    if rng.random() < 0.3 and (name := rng.choice(["arrays", "metrics", "more"])) in content:
        del content[name]
    elif rng.random() < 0.2:
        content[rng.choice(["arrays", "more"])] = rng.choice([ConfigRecord({"a": 1}), MetricRecord(), ArrayRecord()])
    return [reply(content, node)] * rng.choice([1, 1, 1, 2])


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_whatever_nodes_send_the_model_is_finite_and_the_reasons_are_recorded(seed):
    """3,000 malformed replies, fifty in a round."""
    rng = random.Random(seed)
    honest = range(100, 151)
    replies = [reply(records(arrays((1.0 + node / 100, 2.0, 3.0))), node) for node in honest]
    replies += [one for node in HOSTILE for one in malformed(rng, node)]
    rng.shuffle(replies)
    asked = {sent_to(node): node for node in (*honest, *HOSTILE)}
    ours = server(fedavg(), SIZE)
    ours.limits = Limits()
    cohort, reasons, losses, *_ = sift_replies(replies, asked, ROUND, LIKE)
    outcome = ours.receive(cohort, FixedWorld(SIZE, ROUND), reasons)
    assert bool(ours.model.isfinite().all())
    assert outcome.skipped == ""
    heard = set(outcome.weights)
    assert heard >= set(honest)
    assert heard.isdisjoint(outcome.excluded)
    assert heard | outcome.excluded.keys() == set(asked.values())
    assert all(reason and "\n" not in reason and len(reason) < 200 for reason in outcome.excluded.values())
    assert all(np.isfinite(loss) for loss in losses.values())


# ---------------------------------------------------------------- the same through a whole round

FEDERATION = blobs((9, 6, 12, 7), proxy=20)
LOCAL = Local(batch=4)


def rounds(meddle, method="fedavg", data=None):
    app = client_app(
        METHODS.make(method),
        small(),
        data or (lambda context: FEDERATION.only(context.node_config["partition-id"])),
        local=LOCAL,
    )
    strategy = Strategy(
        METHODS.make(method),
        FEDERATION,
        model=small(),
        local=LOCAL,
        rounds=2,
        engine=double(),
        evaluation=Evaluation(0, 0),
        patience=0,
    )
    grid = InProcess(app, 4, meddle=meddle)
    strategy.start(grid)
    assert bool(strategy.simulation.server.model.isfinite().all())
    assert not torch.equal(strategy.simulation.server.model, strategy.trainer.start)
    return strategy, grid


def test_a_round_goes_on_without_the_node_that_sends_another_rounds_reply():
    kept = []

    def stale(message, answer):
        if message.content["config"]["client"] == 2:
            kept.append(answer)
            return kept[0]
        return answer

    strategy, _ = rounds(stale)
    first, second = strategy.run.rounds
    assert first.outcome.excluded == {}
    assert second.outcome.excluded == {2: "it did not reply"}  # to the message of this round


def test_a_round_goes_on_without_nodes_that_fail_and_says_which(caplog):
    def data(context):
        client = context.node_config["partition-id"]
        if client == 1:
            raise OSError("/hospital/patients.csv is gone")
        return FEDERATION.only(client)

    strategy, _ = rounds(None, data=data)
    assert [r.outcome.excluded for r in strategy.run.rounds] == [{1: FAILED}] * 2
    told = "client 1 failed to train: This node could not load its data (OSError); its own log says why."
    assert told in caplog.messages
    assert "hospital" not in caplog.text  # what is where on a site, and what is in it, stays there


def test_a_nodes_own_log_says_in_a_sentence_why_it_could_not_answer():
    """A traceback is left only if the site's own code failed."""
    cases = (
        (CounterpoiseError("client 0: the label 'Mild' is not among class_names."), False),
        (OSError("no such file: /data/hospital.npz"), True),
        (FileNotFoundError(2, "No such file or directory", "/data/hospital.npz"), False),
    )
    for cause, traced in cases:
        try:
            raise CounterpoiseError("This node could not load its data (...); its own log says why.") from cause
        except CounterpoiseError as error:
            record = logging.LogRecord("flwr", 40, "", 0, "%s raised", ("ClientApp",), (type(error), error, None))
        assert _in_a_sentence(record)
        assert record.getMessage() == f"This node could not answer: {str(cause).removeprefix('client 0: ')}"
        assert (record.exc_info is not None and record.exc_info[1] is cause) is traced
    plain = logging.LogRecord("flwr", 20, "", 0, "Start", (), None)
    assert _in_a_sentence(plain)
    assert plain.getMessage() == "Start"


def test_a_round_goes_on_without_a_node_that_never_answers():
    strategy, _ = rounds(lambda message, answer: None if message.content["config"]["client"] == 0 else answer)
    assert [r.outcome.excluded for r in strategy.run.rounds] == [{0: SILENT}] * 2


def test_nobody_takes_anothers_place():
    """Every client is asked at the node of its name, whatever the nodes' numbers."""
    _, grid = rounds(None, "scaffold")
    names = [node.name for node in grid.get_nodes()]
    assert sorted(names) == ["site-0", "site-1", "site-2", "site-3"]
    clients = {m.metadata.dst_node_id: m.content["config"]["client"] for m in grid.sent}
    assert clients == grid.ids


def test_a_liar_is_named_in_the_record_and_in_the_log(caplog):
    """Four nodes are too few to be a measure of one another; the server's own training is one."""

    def triple(message, answer):
        if message.content["config"]["client"] == 3:
            held = answer.content["arrays"]
            held["examples"] = Array(np.array(3 * int(held["examples"].numpy())))
        return answer

    federation, method = digits(4, proxy=300), METHODS.make("feddua:fedavg", prior="proxy", factor="direct")
    model, local = cp.models.mlp(federation.shape, 10, hidden=8), Local(batch=16)
    app = client_app(method, model, lambda context: federation.only(context.node_config["partition-id"]), local=local)
    strategy = Strategy(method, federation, model=model, rounds=2, local=local, evaluation=Evaluation(0, 0), patience=0)
    with caplog.at_level(logging.INFO):
        strategy.start(InProcess(app, 4, meddle=triple))
    honest = int(federation.train.sizes(torch.tensor([3])))
    actions = {(v["round"], v["client"]): (v["action"], v["claimed"]) for v in strategy.run.verdicts}
    assert [actions[r, 3] for r in (1, 2)] == [("corrected", 3.0 * honest)] * 2
    assert {action for (_, client), (action, _) in actions.items() if client != 3} == {"accepted"}
    assert any(f"the claim of client 3 to {3 * honest} samples is corrected: " in m for m in caplog.messages)
