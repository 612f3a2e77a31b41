"""A strategy's runs: kept, killed, gone on with; nodes that come, go and forget."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from grids import InProcess
from helpers import assert_close, blobs, double, small
from safetensors.torch import load_file

import counterpoise as cp
from counterpoise.engine import Evaluation, Simulation
from counterpoise.errors import CounterpoiseError, Diverged, Failed
from counterpoise.federation.absence import AWAY, FAILED
from counterpoise.flower import Strategy, client_app
from counterpoise.flower.roster import Roster
from counterpoise.flower.server import _in_a_sentence
from counterpoise.local import Local, sgd
from counterpoise.methods import METHODS
from counterpoise.reports.report import sections
from counterpoise.reports.study import study
from counterpoise.runs.folder import Folder
from counterpoise.runs.saved import load_run, status_of

LOCAL = Local(epochs=2, batch=4, optimizer=sgd(0.05))
FEDERATION = blobs((9, 6, 12, 7), heldout=0.2, proxy=20, test=(np.zeros((3, 6)), np.array([0, 1, 2])))
SEED = 3


def app(method):
    return client_app(
        METHODS.make(method), small(), lambda c: FEDERATION.only(c.node_config["partition-id"]), local=LOCAL
    )


def strategy(method, rounds=4, **settings):
    settings = {"model": small(), "engine": double(), "seed": SEED, "patience": 0, "local": LOCAL} | settings
    return Strategy(METHODS.make(method), FEDERATION, rounds=rounds, **settings)


def gone(method, rounds=4, grid=None, **settings):
    """A run to its end."""
    made = strategy(method, rounds, **settings)
    made.start(grid or InProcess(app(method), 4))
    return made


class Cut(InProcess):
    """A grid that breaks in a round, at its training or at its evaluation."""

    def __init__(self, app, clients, at, kind) -> None:
        super().__init__(app, clients)
        self.at, self.kind = at, kind

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        if any(m.metadata.group_id == str(self.at) and m.metadata.message_type == self.kind for m in messages):
            raise ConnectionError("the machine is gone")
        return super().send_and_receive(messages, timeout=timeout)


def test_records_of_the_model_share_the_bytes_of_its_frozen_base():
    model = cp.models.with_lora(small(), 1, whole="2")
    made = strategy("fedavg", 1, model=model)
    before = made.arrays()
    node = client_app("fedavg", model, lambda c: FEDERATION.only(c.node_config["partition-id"]), local=LOCAL)
    made.start(InProcess(node, 4))
    after, own = made.arrays(), made.trainer.module.state_dict()
    assert [*after] == [*before] == [*own]
    assert {name for name in own if after[name].data is before[name].data} == {"0.base.weight", "0.base.bias"}
    for name in ("0.base.weight", "0.base.bias"):
        assert np.array_equal(after[name].numpy(), own[name].numpy())
        assert made.run.model.get_parameter(name).data_ptr() == own[name].data_ptr()


def test_a_node_with_another_frozen_base_is_refused_with_a_sentence(caplog):
    def model(change):
        base = small()
        with torch.no_grad():
            base[0].weight[0, 0] += change
        torch.manual_seed(0)
        return cp.models.with_lora(base, 1)

    def data(context):
        return FEDERATION.only(context.node_config["partition-id"])

    same, other = (client_app("fedavg", model(change), data, local=LOCAL) for change in (0.0, 0.1))
    made = strategy("fedavg", 1, model=model(0.0))
    made.start(InProcess(lambda m, c: (other if c.node_config["partition-id"] == 2 else same)(m, c), 4))
    assert [*made.run.rounds[0].outcome.excluded] == [2]
    assert (
        "client 2 failed to train: The frozen weights of the model on this node are not the server's. Load the same file of "
        "weights on the server and on all nodes." in caplog.messages
    )


# ---------------------------------------------------------------- kept and gone on with


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("method", ["mifa", "feddua:fedavgm"])
def test_a_run_that_was_killed_goes_on_from_its_last_round_and_ends_the_same(method, kind, tmp_path):
    with pytest.raises(ConnectionError):
        gone(method, grid=Cut(app(method), 4, 3, kind), out=tmp_path / "run")
    again = strategy(method, out=tmp_path / "run")
    assert again.simulation.round == 2
    again.start(InProcess(app(method), 4, order=5))
    whole = gone(method)
    assert torch.equal(again.simulation.server.model, whole.simulation.server.model)
    assert [r.round for r in again.run.rounds] == [1, 2, 3, 4]
    assert [r.outcome for r in again.run.rounds] == [r.outcome for r in whole.run.rounds]


def test_the_folder_is_that_of_a_simulation(tmp_path):
    made = gone("mifa", out=tmp_path / "run")
    run = cp.simulate(
        "mifa",
        FEDERATION,
        model=small(),
        rounds=4,
        local=LOCAL,
        seed=SEED,
        engine=double(),
        evaluation=Evaluation(1, 1),
        out=tmp_path / "simulated",
    )
    assert made.run.accuracy == run.accuracy
    for name in ("metrics.jsonl", "clients.jsonl"):
        ours, theirs = ((tmp_path / where / name).read_text().splitlines() for where in ("run", "simulated"))
        for our, their in zip(map(json.loads, ours), map(json.loads, theirs), strict=True):
            assert our.keys() == their.keys()
            for key in our.keys() - {"seconds", "memory", "notes", "metrics", "train_loss", "loss", "weights"}:
                assert our[key] == their[key], key
            for key in our.keys() & {"train_loss", "loss"}:
                assert our[key] == pytest.approx(their[key])
    folder = Folder.open(tmp_path / "run")
    assert folder.config.method["name"] == "mifa"
    assert json.loads((tmp_path / "run" / "checkpoint" / "checkpoint.json").read_text())["status"] == "finished"


def test_the_model_of_a_finished_run_loads_into_plain_torch(tmp_path):
    made = gone("fedavgm", out=tmp_path / "run")
    plain = small()
    plain.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    inputs = torch.rand(5, 6, dtype=next(plain.parameters()).dtype)
    assert torch.equal(plain(inputs), made.run.model(inputs))
    assert not torch.equal(plain(inputs), small()(inputs))
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    gone("fedavgm", rounds=5, out=tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").read_bytes() != before


def test_the_names_of_keys_stand_in_the_report_and_stay_if_a_node_does_not_come_back(tmp_path):
    grid, late = InProcess(app("fedavg"), 4), {}
    late |= {node: grid.contexts.pop(node) for node, client in grid.ids.items() if client == 2}
    gone("fedavg", rounds=1, grid=grid, out=tmp_path / "run")
    assert load_run(tmp_path / "run").client_names == ["site-0", "site-1", "2", "site-3"]
    grid.contexts |= late
    grid.contexts.pop(next(node for node, client in grid.ids.items() if client == 0))
    made = gone("fedavg", rounds=2, grid=grid, out=tmp_path / "run")
    assert made.run.client_names == ("site-0", "site-1", "site-2", "site-3")
    run = load_run(tmp_path / "run")
    assert run.client_names == [*made.run.client_names]
    assert run.doubts == ()
    parts = {part.title: part for section in sections(study([tmp_path / "run"])) for part in section.parts}
    rows = [["site-0", "1 of 2", AWAY], ["site-2", "1 of 2", AWAY]]
    assert parts["Clients that were left out"].rows == rows


def test_nodes_without_names_leave_clients_their_numbers(tmp_path):
    gone("fedavg", rounds=1, grid=InProcess(app("fedavg"), 4, names=False), out=tmp_path / "run")
    assert load_run(tmp_path / "run").client_names is None


def test_the_log_says_early_that_four_clients_are_too_few_to_be_judged(caplog, tmp_path):
    gone("feddua:fedavg", rounds=2, out=tmp_path / "run")
    why = "nobody is judged, and every claim is believed: fewer than 5 clients have been seen"
    assert caplog.messages.count(why) == 1
    assert any(line.startswith("No client was judged in this run") for line in caplog.messages)
    parts = {part.title: part for section in sections(study([tmp_path / "run"])) for part in section.parts}
    assert parts["Verdicts"].columns == ["method", "claims judged", "accepted", "not judged"]
    assert parts["Verdicts"].rows == [["feddua:fedavg", "0", "0", "8"]]
    assert "were believed as they were: fewer than 5 clients have been seen." in parts["Verdicts"].caption
    assert load_run(tmp_path / "run").measures()["detection claims"] == 0


def test_a_finished_run_can_be_given_more_rounds(tmp_path):
    gone("fedavg", 2, out=tmp_path / "run")
    more = gone("fedavg", 4, out=tmp_path / "run")
    assert torch.equal(more.simulation.server.model, gone("fedavg", 4).simulation.server.model)
    assert Folder.open(tmp_path / "run").config.rounds == 4


@pytest.mark.parametrize(("rounds", "asked", "evaluated"), [(3, 5, [4, 5]), (5, 3, [3]), (3, None, [3])])
def test_the_last_round_is_evaluated_whoever_says_which_it_is(rounds, asked, evaluated):
    made = strategy("fedavg", rounds, evaluation=Evaluation(every=4, clients_every=4))
    made.start(InProcess(app("fedavg"), 4), num_rounds=asked)
    assert [record.round for record in made.run.rounds if record.clients] == evaluated


@pytest.mark.parametrize(("method", "lost"), [("fedavg", ""), ("scaffold", "its variate starts at zero again")])
def test_what_nodes_forget_is_told_if_a_run_is_continued(method, lost, tmp_path, caplog):
    def told(rounds):
        caplog.clear()
        gone(method, rounds, out=tmp_path / "run")
        return [m for m in caplog.messages if m.startswith("Nodes keep nothing")]

    assert told(1) == []
    assert told(2) == ([f"Nodes keep nothing from one run to the next. For each client: {lost}."] if lost else [])
    assert told(2) == []  # no round is left


def test_the_folder_of_another_run_is_refused(tmp_path):
    gone("fedavg", 1, out=tmp_path / "run")
    sentence = "The method given is not the one this run was made with: method.name was 'fedavg' and is 'feddua:fedavg'"
    with pytest.raises(CounterpoiseError, match=sentence):  # and not the first option by the alphabet
        strategy("feddua:fedavg", out=tmp_path / "run")


def test_a_deployment_is_not_resumed_as_a_simulation(tmp_path):
    gone("fedavg", 1, out=tmp_path / "run")
    with pytest.raises(CounterpoiseError, match=r"^The run in .*run is a deployment, and only its nodes can continue"):
        cp.resume(tmp_path / "run", rounds=2, progress=False)
    assert Folder.open(tmp_path / "run").config.rounds == 1


def test_a_run_is_one_processs_at_a_time(tmp_path):
    gone("fedavg", 2, out=tmp_path / "run")
    folder = Folder.open(tmp_path / "run")
    record = folder.metrics.path
    record.write_text(record.read_text() + '{"round":3}\n')  # as its owner does before a checkpoint
    held = record.read_text()
    with folder.locked(), pytest.raises(CounterpoiseError, match="Another process is working on the run"):
        strategy("fedavg", 4, out=tmp_path / "run")
    assert record.read_text() == held
    late = strategy("fedavg", 4, out=tmp_path / "run")
    gone("fedavg", 3, out=tmp_path / "run")
    with pytest.raises(CounterpoiseError, match="Another process has continued the run"):
        late.start(InProcess(app("fedavg"), 4))


def test_another_number_of_nodes_is_told_as_that(tmp_path):
    gone("fedavg", 1, out=tmp_path / "run")
    settings = {"model": small(), "engine": double(), "seed": SEED, "local": LOCAL}
    with pytest.raises(
        CounterpoiseError, match=r"^The federation given is not the one .* another number of clients, or"
    ):
        Strategy(
            "fedavg", blobs((9, 6, 12), test=(np.zeros((3, 6)), np.array([0, 1, 2]))), out=tmp_path / "run", **settings
        )


def test_a_run_that_diverged_is_kept_and_not_gone_on_with(tmp_path):
    def explode(message, answer):
        answer.content["arrays"]["update"] = Array(np.full(53, np.nan))
        return answer

    with pytest.raises(Diverged):
        gone("fedavg", grid=InProcess(app("fedavg"), 4, meddle=explode), out=tmp_path / "run")
    with pytest.raises(CounterpoiseError, match="diverged after round 2"):
        strategy("fedavg", out=tmp_path / "run")


# ---------------------------------------------------------------- nodes that forget, are away, are nobody


@pytest.mark.parametrize("method", ["scaffold", "ditto", "moon"])
def test_a_node_that_lost_its_state_begins_as_one_never_seen(method):
    grid = InProcess(app(method), 4)
    made = strategy(method, 3)
    simulation = Simulation(METHODS.make(method), FEDERATION, small(), local=LOCAL, seed=SEED, engine=double())
    for _ in range(2):
        made.start(grid, num_rounds=made.simulation.round + 1)
        simulation.advance()
    kept = simulation.server.model.clone()
    node = next(node for node, client in grid.ids.items() if client == 2)
    grid.restart(node)
    made.start(grid)
    for store in simulation.client_state.values():
        store.put(2, store.initial)
    simulation.advance()
    assert_close(made.simulation.server.model, simulation.server.model, simulation.server.model - kept, 1e-8)


def test_a_state_of_another_shape_is_as_good_as_lost():
    grid = InProcess(app("scaffold"), 4)
    for context in grid.contexts.values():
        context.state["counterpoise"] = ArrayRecord({"variate/c": Array(np.zeros(2)), "x": Array(np.zeros(1, "U3"))})
    made = gone("scaffold", 2, grid)
    assert torch.equal(made.simulation.server.model, gone("scaffold", 2).simulation.server.model)


def test_clients_whose_node_is_not_there_are_on_record():
    grid = InProcess(app("fedavg"), 4)
    away = next(node for node, client in grid.ids.items() if client == 1)
    context = grid.contexts.pop(away)
    made = strategy("fedavg", 2)
    made.start(grid, num_rounds=1)
    grid.contexts[away] = context
    made.start(grid)
    assert [r.outcome.excluded for r in made.run.rounds] == [{1: AWAY}, {}]
    assert made.run.rounds[0].cohort == (0, 1, 2, 3)


def test_a_federation_without_any_node_fails_with_the_reason(tmp_path):
    grid = InProcess(app("fedavg"), 4)
    contexts = dict(grid.contexts)
    grid.contexts.clear()
    sentence = (
        "^No round trained the model: all 2 rounds were skipped, because no client could be heard "
        r"\(clients were left out for this reason: it is not connected\)\. The model is the one the run began with\.$"
    )
    with pytest.raises(Failed, match=sentence) as caught:
        gone("fedavg", 2, grid, out=tmp_path / "run")
    assert caught.value.run.status == "failed"
    assert [r.outcome.skipped for r in caught.value.run.rounds] == ["no client could be heard"] * 2
    assert status_of(tmp_path / "run") == "failed"
    grid.contexts.update(contexts)
    assert gone("fedavg", 3, grid, out=tmp_path / "run").run.status == "finished"
    assert status_of(tmp_path / "run") == "finished"


class Nodes:
    """Nodes by number: what they are called, and what they answer when they are asked."""

    in_process = True

    def __init__(self, names, claims) -> None:
        self.names, self.claims = names, claims

    def get_nodes(self):
        return [SimpleNamespace(node_id=node, name=name) for node, name in self.names.items()]

    def send_and_receive(self, messages, *, timeout=None):
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            claim = self.claims.get(message.metadata.dst_node_id)
            if claim is not None:
                yield Message(RecordDict({"metrics": MetricRecord(claim)}), reply_to=message)


def test_a_name_with_a_number_is_a_client_and_nobody_takes_anothers_place(caplog):
    roster = Roster(3)
    InProcess(None, 0)  # messages can be made
    grid = Nodes(
        {11: "", 12: "clinic-2", 13: "", 14: "clinic-9", 15: "", 16: "x-1000000000001"},
        {11: {"client": 2}, 13: {"client": 0}},
    )
    assert roster.present(grid) == {0: 13, 2: 12}
    assert "clinic-9 is not one of the 3 clients and is not asked." in caplog.messages
    # One that did not answer is asked again; one that is there under another number is still itself.
    grid.claims[15] = {"client": 1}
    assert roster.present(grid)[1] == 15
    del grid.names[15]
    assert 1 not in roster.present(grid)


def test_a_name_comes_before_a_word_given_earlier(caplog):
    InProcess(None, 0)
    roster = Roster(2)
    assert roster.present(Nodes({4: ""}, {4: {"client": 1}})) == {1: 4}
    assert roster.present(Nodes({4: "", 5: "site-1"}, {4: {"client": 1}})) == {1: 5}
    assert "node 4 says it is client 1, which is site-1; it is not asked any more." in caplog.messages


def test_a_named_node_comes_back_under_another_number():
    roster = Roster(2)
    assert roster.present(Nodes({5: "site-1"}, {})) == {1: 5}
    assert roster.present(Nodes({99: "site-1"}, {})) == {1: 99}


def test_two_nodes_of_one_name_are_one_client(caplog):
    assert Roster(2).present(Nodes({5: "site-1", 6: "site-1"}, {})) == {1: 5}
    assert "site-1 is connected twice; node 6 is not asked." in caplog.messages


def test_a_node_whose_claim_is_taken_is_told_so(caplog):
    InProcess(None, 0)
    roster = Roster(2)
    assert roster.present(Nodes({5: "site-1"}, {})) == {1: 5}
    with caplog.at_level(logging.WARNING):
        assert roster.present(Nodes({5: "site-1", 4: ""}, {4: {"client": 1}})) == {1: 5}
    assert "node 4 says it is client 1, which is site-1; it is not asked." in caplog.messages


def test_a_node_is_refused_if_its_partition_id_is_not_the_number_in_its_name(caplog):
    grid = InProcess(app("fedavg"), 4)
    node = next(node for node, client in grid.ids.items() if client == 2)
    grid.restart(node, {"partition-id": 0})
    made = gone("fedavg", 1, grid)
    assert made.run.rounds[0].outcome.excluded == {2: FAILED}
    assert any("This node is client 2 by the name of its key, and client 0 by its part" in m for m in caplog.messages)


def test_a_named_node_needs_no_partition_id():
    made = gone("fedavg", 1, InProcess(app("fedavg"), 4, config={"memory-gib": 1}))
    assert made.run.rounds[0].outcome.excluded == {}
    assert torch.equal(made.loop.server.model, gone("fedavg", 1).loop.server.model)


@pytest.mark.parametrize(("sent", "shown"), [([0, 0, 9], "0.0.9"), (None, "of another version"), ([1.5], "of another")])
def test_a_node_of_another_version_is_told_once(sent, shown, caplog):
    def older(message, answer):
        if message.content["config"]["client"] == 1:
            metrics = {name: value for name, value in answer.content["metrics"].items() if name != "version"}
            answer.content["metrics"] = MetricRecord(metrics | ({} if sent is None else {"version": sent}))
        return answer

    made = gone("fedavg", 2, InProcess(app("fedavg"), 4, meddle=older))
    told = [m for m in caplog.messages if "runs counterpoise" in m]
    assert [m.startswith(f"client 1 runs counterpoise {shown}") for m in told] == [True]
    assert not any(record.outcome.excluded for record in made.run.rounds)


def test_a_run_that_has_its_rounds_says_that_nothing_is_left(tmp_path, caplog):
    gone("fedavg", 1, out=tmp_path / "run")
    assert not caplog.messages
    gone("fedavg", 1, out=tmp_path / "run")
    assert caplog.messages == ["The run already reached round 1: nothing is left. Ask for more rounds."]


def test_an_error_of_ours_is_logged_as_a_sentence_without_a_traceback():
    def logged(error):
        try:
            raise error
        except Exception as raised:
            record = logging.makeLogRecord({"msg": "%s failed", "args": ("App",), "exc_info": (None, raised, None)})
        assert _in_a_sentence(record)
        return record.getMessage(), bool(record.exc_info)

    assert logged(CounterpoiseError("Give 3% more.")) == ("The run was stopped: Give 3% more.", False)
    assert logged(OSError("the disk is gone")) == ("App failed", True)


# ---------------------------------------------------------------- as other strategies are used


def test_it_begins_with_the_arrays_it_is_given():
    other = small()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.5)
    arrays = ArrayRecord({name: Array(t.numpy()) for name, t in other.state_dict().items()})
    made = strategy("fedavg", 2)
    result = made.start(InProcess(app("fedavg"), 4), arrays)
    asked = gone("fedavg", 2, model=other)
    assert torch.equal(made.simulation.server.model, asked.simulation.server.model)
    ended = result.arrays.to_torch_state_dict()
    assert all(torch.equal(ended[name], t) for name, t in asked.run.model.state_dict().items())
    assert result.train_metrics_clientapp.keys() == result.evaluate_metrics_serverapp.keys() == {1, 2}
    with pytest.raises(CounterpoiseError, match="lacks the parameter"):
        strategy("fedavg").start(None, ArrayRecord())


def test_the_usual_loop_of_flower_drives_it_too():
    made, grid = strategy("fedavgm", 2), InProcess(app("fedavgm"), 4)
    arrays = made.arrays()
    for number in (1, 2):
        messages = made.configure_train(number, arrays, ConfigRecord(), grid)
        arrays, metrics = made.aggregate_train(number, grid.send_and_receive(messages))
        assert metrics.keys() == {"train_loss"}
        messages = made.configure_evaluate(number, arrays, ConfigRecord(), grid)
        assert made.aggregate_evaluate(number, grid.send_and_receive(messages)).keys() == {"accuracy", "loss"}
    assert torch.equal(made.simulation.server.model, gone("fedavgm", 2).simulation.server.model)
    with pytest.raises(CounterpoiseError, match="before configure_train"):
        made.aggregate_train(3, [])


def test_a_model_of_another_size_on_a_node_is_told(caplog):
    wrong = client_app(
        "fedavg", small(classes=4), lambda c: FEDERATION.only(c.node_config["partition-id"]), local=LOCAL
    )
    with pytest.raises(Failed, match="its only round was skipped, because no client could be heard"):
        gone("fedavg", 1, InProcess(wrong, 4))
    assert any(
        "The model on this node has 59 parameters, and the server's has 53. This node has samples of shape (6,) and 3 "
        "classes; the server has samples of shape (6,) and 3 classes." in m
        for m in caplog.messages
    )


def test_a_server_needs_samples_of_its_own():
    with pytest.raises(CounterpoiseError, match="needs samples of its own"):
        Strategy("fedavg", blobs((3, 3)), model=small())
