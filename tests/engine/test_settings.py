"""What a simulation refuses before it begins, and when it evaluates."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import blobs, data_of, digits, double, flat, net, small
from torch import nn
from torch.nn import functional as F

import counterpoise as cp
from counterpoise import measures
from counterpoise.engine import Engine, Evaluation, Simulation
from counterpoise.engine.acceleration import doors
from counterpoise.engine.backends import batched, making, stacking
from counterpoise.engine.backends import settings as engine_settings
from counterpoise.engine.backends.settings import _ELEMENTS
from counterpoise.engine.clients import doubts, inspection
from counterpoise.engine.rounds.evaluation import _training_rows
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation
from counterpoise.federation.assignment import Elsewhere
from counterpoise.local import Local
from counterpoise.method import Method, Part, Reply
from counterpoise.methods import METHODS, fedavg
from counterpoise.parts import by_data, mean, server_step


def started(model=None, federation=None, **settings):
    settings = {"engine": double()} | settings
    return Simulation(fedavg(), federation or blobs([4, 5, 6]), model or small(), **settings)


class Counting(nn.Module):
    """A model with a state of its own that every pass changes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, inputs):
        self.passes += 1
        return self.layer(inputs)


class Flat(nn.Module):
    """One number a sample instead of one per class."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, inputs):
        return self.layer(inputs).squeeze(1)


def frozen():
    return small().requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (net(nn.Linear(7, 3)), r"The model cannot take this federation's samples of shape \(6,\): "),
        (net(nn.Conv2d(1, 2, 3), nn.Flatten()), r"The model cannot take this federation's samples of shape \(6,\): "),
        (net(nn.Linear(6, 2)), "output for a sample has shape \\(2,\\), and the data has 3 classes"),
        (frozen(), "The model has no trainable parameters; there is nothing to learn"),
        (nn.Flatten(), "The model has no trainable parameters"),
        (Counting(), "The model's buffer 'passes' changes in a forward pass, which clients cannot share"),
        (Flat(), "output"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_a_sentence(model, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        started(model)


@pytest.mark.parametrize(("outputs", "warned"), [(3, 0), (5, 1)])
def test_a_model_with_more_outputs_than_classes_is_warned_of_once(outputs, warned, caplog):
    inspection._warn_of_more.cache_clear()
    for _ in range(2):
        started(net(nn.Linear(6, outputs)))
    assert sum("has 5 outputs for 3 classes" in record.message for record in caplog.records) == warned


@pytest.mark.parametrize(
    ("targets", "told"),
    [
        ([0, 1, 2], ""),
        ([0, 2, 3], ""),
        ([1, 2, 3], "the smallest class number is 1. 3 of the classes from 0 to 3 have samples"),
        ([0, 1, 9], "the smallest class number is 0. 3 of the classes from 0 to 9 have samples"),
    ],
)
def test_class_numbers_with_gaps_are_warned_of(targets, told, caplog):
    doubts._warn_of_gaps.cache_clear()
    federation = cp.Federation.from_datasets([(torch.rand(6, 2), torch.tensor(targets * 2))], heldout=0)
    doubts.tell_doubts(federation)
    assert [told in message for message in caplog.messages] == ([True] if told else [])
    assert all("If other sites hold the other classes, leave the numbers as they are" in m for m in caplog.messages)


@pytest.mark.parametrize(
    ("pixels", "warned"),
    [
        (torch.arange(96.0).view(6, 4, 4) + 160, True),
        (torch.arange(96.0).view(6, 4, 4) / 95, False),
        (torch.arange(96.0).view(6, 4, 4) % 17, False),
        (torch.arange(96.0).view(6, 4, 4) - 1, False),
        (torch.arange(96.0).view(6, 16), False),
        (torch.arange(96).view(6, 4, 4).byte(), False),
    ],
)
def test_pixels_that_are_fractions_are_warned_of(pixels, warned, caplog):
    doubts._warn_of_pixels.cache_clear()
    federation = cp.Federation.from_arrays(pixels, torch.arange(6) % 2, partition=cp.iid(2))
    doubts.tell_doubts(federation)
    assert [m.startswith("The inputs are whole numbers from 0 to 255") for m in caplog.messages] == [True] * warned


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"loss": F.cross_entropy},
            r"The loss must return one value per sample, shape \(2,\), not \(\); for one number use reduction='none'",
        ),
        (
            {"loss": lambda o, t: (o - F.one_hot(t, 3)) ** 2},
            r"The loss must return one value per sample, shape \(2,\), not \(2, 3\)",
        ),
        ({"loss": lambda o, t: (o - torch.zeros(2, 7)).sum(1)}, "The loss cannot take the model's output of shape"),
        (
            {"metrics": {"error": lambda o, t: (o.argmax(1) != t).double().mean()}},
            r"The metric error must return one value per sample",
        ),
        ({"cohort": 4}, "cohort must be from 0 .nobody. to the 3 clients there are, not 4"),
        ({"cohort": -1}, "cohort must be from 0 .nobody. to the 3 clients there are, not -1"),
        ({"cohort": 1.5}, "cohort as a fraction must be above 0 and at most 1, not 1.5"),
        ({"cohort": float("nan")}, "cohort as a fraction must be above 0 and at most 1, not nan"),
        ({"cohort": "all"}, r"cohort must be a number of clients, a fraction of them or nothing \(all\), not 'all'"),
        ({"cohort": True}, "cohort must be a number of clients"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 2**64}, "seed"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(settings, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        started(**settings).advance()


@pytest.mark.parametrize(("ids", "sentence"), [([0, 7], "7"), ([-1], "-1"), ([1, 1], "1")])
def test_a_sampler_that_names_who_is_not_there_or_one_twice_is_refused(ids, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        started(cohort=lambda seed, round, population: torch.tensor(ids)).advance()


def test_targets_that_are_not_classes_need_a_loss():
    federation = Federation.from_arrays(np.zeros((6, 6)), np.zeros((6, 3)), partition=cp.iid(2))
    with pytest.raises(CounterpoiseError, match="These targets are not class numbers; give simulate a loss"):
        started(federation=federation)
    squares = lambda outputs, targets: (outputs - targets).square().sum(1)  # noqa: E731
    record = started(federation=federation, loss=squares).advance()
    assert set(record.metrics) == {"train_loss"}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"backend": "batch"}, r"There is no backend 'batch'\. Did you mean 'batched'"),
        ({"dtype": "float16"}, r"There is no dtype 'float16'\. Did you mean 'float"),
        ({"threads": 0}, "engine: threads must be a whole number from 1 to 4096, not 0"),
        ({"threads": True}, "engine: threads must be a whole number from 1"),
        ({"chunk": 2.0}, "engine: chunk must be a whole number from 1 to 1000000000, not 2.0"),
        ({"device": "gpu"}, r"engine: there is no device 'gpu'; use cpu or cuda"),
        ({"device": "meta"}, "device"),
        ({"device": None}, r"engine: there is no device None; use cpu or cuda"),
        ({"bf16": "no"}, "engine: bf16 must be true or false, not 'no'"),
        ({"dtype": "bfloat16"}, "to compute in bfloat16 set bf16=True"),
    ],
)
def test_bad_engine_settings_are_refused_with_a_sentence(settings, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        Engine(**settings)


def test_a_gpu_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CounterpoiseError, match=r"torch finds no GPU here\. Use device=cpu"):
        Engine(device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(CounterpoiseError, match=r"there is no cuda:3: torch finds 1 GPUs here"):
        Engine(device="cuda:3")


def test_an_engine_is_resolved_from_what_was_asked_and_the_sizes():
    resolved = Engine(device="cpu").resolve(10, 1000)
    assert (resolved.backend, resolved.device, resolved.chunk) == ("per-client", "cpu", 10)
    assert resolved.threads >= 1
    assert resolved.resolve(99, 5) == resolved  # what is settled stays
    assert Engine(device="cpu", backend="batched").resolve(10**6, 2**21).chunk == 2
    assert Engine(device="cpu", chunk=3).resolve(10, 1000).chunk == 3
    assert Engine(device="cpu").resolve(0, 1000).chunk == 1
    assert Engine(device="cpu").resolve(10, 1000, stacks=True).backend == "batched"


@pytest.mark.parametrize(
    ("door", "device", "without"),
    [
        ("use_kernels", "cuda", {"convolutions": "torch"}),
        ("use_compiled_steps", "cuda", {"compile": False}),
        ("use_scripted_steps", "cpu", {"record": False}),
    ],
)
def test_a_closed_door_switches_off_one_accelerator(door, device, without, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(doors, "available", lambda: True)
    asked = Engine(device=device, compile=device == "cuda")
    opened = asked.resolve(10, 1000, scripts=True)
    monkeypatch.setattr(engine_settings, door, lambda *_: False)
    assert asked.resolve(10, 1000, scripts=True) == replace(opened, **without) != opened


def test_the_door_of_cuda_graphs(monkeypatch):
    assert not started(engine=double(backend="batched")).backend.captures
    monkeypatch.setattr(batched, "use_cuda_graphs", lambda device: True)
    assert started(engine=double(backend="batched")).backend.captures


class Doubting(nn.Module):
    """What it does depends on its weights, as Python sees them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, inputs):
        return self.layer(inputs if self.layer.weight.sum() > 0 else 2 * inputs)


class Tabled(nn.Module):
    """Looks rows up in a table; threads would add the gradients of a stack of them up in any order."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Parameter(torch.ones(5, 6)), nn.Linear(6, 3)

    def forward(self, inputs):
        return self.layer(inputs + self.table[inputs.detach().argmax(1) % 5])


class Mixing(nn.Module):
    """A small layer used at a hundred places: its work is not told by its parameters."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, inputs):
        return self.last(self.layer(inputs.unsqueeze(1).expand(-1, 100, -1)).mean(1))


class Hurried(nn.Module):
    """What it does in evaluation depends on its weights, as Python sees them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, inputs):
        outputs = self.layer(inputs)
        return outputs if self.training or self.layer.weight.sum() > 0 else 2 * outputs


def noticing(**hooks):
    """FedAvg with a client's hook of the user's own."""
    return fedavg().adding(local=Part("own", **hooks))


def clipped(client, step, g):
    return g / g.norm() if g.norm() > 1 else g


def paired(client, step, w):
    out = step.output_at(w)
    return 0 * out.sum() if len(out) < 2 or out.sum() > 0 else out.sum()


def grumbling(client, step, g):
    if torch._C._functorch.maybe_current_level() is not None:
        raise ValueError("\n  not in a stack")
    return g


def counted(client, reply):
    return Reply(reply.update, {"norm": torch.tensor(reply.update.norm().item())})


def convolving():
    return net(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("backend", "settings"),
    [
        ("batched", {}),
        ("batched", {"model": net(nn.Linear(6, 8), nn.Dropout(), nn.Linear(8, 3))}),
        ("per-client", {"engine": double(backend="per-client")}),
        ("per-client", {"cohort": 3}),
        ("per-client", {"federation": blobs([1] * 19 + [400]), "local": Local(batch=4)}),
        ("per-client", {"model": net(nn.Linear(6, 100_000), nn.Linear(100_000, 3))}),
        ("per-client", {"model": convolving()}),
        ("per-client", {"model": Doubting()}),
        ("per-client", {"model": Tabled()}),
        ("per-client", {"model": Mixing()}),
        ("per-client", {"model": Hurried()}),
        ("per-client", {"method": noticing(gradient=clipped)}),
        ("per-client", {"method": noticing(finish=counted)}),
        ("batched", {"method": noticing(gradient=lambda client, step, g: g / g.norm().clamp(min=1))}),
        ("batched", {"method": noticing(loss=lambda client, step, w: step.output_at(w).topk(2, dim=0).values.sum())}),
        ("per-client", {"method": noticing(loss=paired)}),
        ("per-client", {"method": noticing(gradient=grumbling)}),
        ("batched", {"model": net(nn.Flatten(), nn.Linear(6, 3), nn.Unflatten(1, (3, 1)), nn.Flatten())}),
        ("per-client", {"engine": double(chunk=2)}),
        ("batched", {"engine": double(chunk=10**9)}),
        ("batched", {"local": Local(batch=2**21)}),  # there are 9 samples
        ("per-client", {"method": METHODS.make("fedoaed")}),  # its traces
    ],
)
def test_a_cpu_takes_small_equal_clients_as_one_batch(backend, settings):
    settings = {"method": fedavg(), "federation": blobs([9] * 20), "model": small(), "engine": double()} | settings
    simulation = Simulation(settings.pop("method"), settings.pop("federation"), settings.pop("model"), **settings)
    assert simulation.engine.backend == backend
    simulation.advance()


@pytest.mark.parametrize("settings", [{"engine": double(backend="per-client")}, {"cohort": 2}])
def test_nothing_is_tried_where_clients_train_one_by_one_anyway(settings, monkeypatch):
    monkeypatch.setattr(stacking, "Batched", None)
    Simulation(fedavg(), blobs([9] * 20), small(), **settings).advance()


def test_batches_too_large_for_many_at_once_leave_clients_on_their_own(monkeypatch):
    monkeypatch.setitem(_ELEMENTS, "cpu", 200)  # 9 samples of 6 numbers: chunks of three
    simulation = started(net(nn.Linear(6, 3)), blobs([9] * 20))
    assert (simulation.engine.backend, simulation.engine.chunk) == ("per-client", 3)


@pytest.mark.parametrize(
    ("cohort", "count"),
    [(None, 3), (2, 2), (1.0, 3), (0.5, 2), (0.01, 1), (0, 0), (lambda s, r, n: torch.tensor([2]), 1)],
)
def test_a_cohort_is_a_count_a_fraction_or_all(cohort, count):
    assert len(started(cohort=cohort).advance().cohort) == count


# ---------------------------------------------------------------- evaluation


def evaluated(every, clients_every, rounds=4, **settings):
    federation = digits(4)
    simulation = Simulation(
        fedavg(),
        federation,
        cp.models.linear(federation.shape, 10),
        local=Local(batch=50),
        evaluation=Evaluation(every, clients_every, batch=77),
        engine=double(),
        **settings,
    )
    return simulation, [simulation.advance(last=round == rounds) for round in range(1, rounds + 1)]


def test_metrics_are_the_means_over_the_samples():
    simulation, records = evaluated(1, 1, rounds=2)
    federation, model = simulation.trainer.federation, simulation.trained()
    assert torch.equal(flat(model), simulation.server.model)

    def measure(samples, rows):
        inputs, targets = samples.take(rows, torch.float64)
        with torch.no_grad():
            outputs = model(inputs)
        return float(F.cross_entropy(outputs, targets)), float((outputs.argmax(1) == targets).double().mean())

    loss, accuracy = measure(federation.test, torch.arange(len(federation.test)))
    assert records[-1].metrics["loss"] == pytest.approx(loss, rel=1e-12)
    assert records[-1].metrics["accuracy"] == pytest.approx(accuracy, rel=1e-12)
    assert accuracy > 0.4
    for client in range(4):
        ids = torch.tensor([client])
        rows = federation.heldout.rows(ids)[0][: int(federation.heldout.sizes(ids))]
        loss, accuracy = measure(federation.base, rows)
        assert records[-1].clients["loss"][client] == pytest.approx(loss, rel=1e-12)
        assert records[-1].clients["accuracy"][client] == pytest.approx(accuracy, rel=1e-12)


@pytest.mark.parametrize(
    ("every", "clients_every", "rounds", "clients"),
    [(1, 2, {1, 2, 3, 4}, {2, 4}), (3, 3, {3, 4}, {3, 4}), (0, 0, set(), set()), (2, 0, {2, 4}, set())],
)
def test_evaluation_comes_as_often_as_asked_and_in_the_last_round(every, clients_every, rounds, clients):
    _, records = evaluated(every, clients_every)
    assert {r.round for r in records if "accuracy" in r.metrics} == rounds
    assert {r.round for r in records if r.clients} == clients
    assert all("train_loss" in r.metrics for r in records)


def trained_on(train_every=2, **settings):
    simulation = Simulation(
        fedavg(),
        blobs([3, 0, 6, 4], heldout=0.3),
        small(),
        evaluation=Evaluation(0, 0, batch=5, train_every=train_every),
        engine=double(),
        **settings,
    )
    return simulation, [simulation.advance(last=round == 3) for round in range(1, 4)]


def test_training_accuracy_is_the_servers_model_on_the_clients_training_samples():
    simulation, records = trained_on()
    assert [r.round for r in records if "train_accuracy" in r.metrics] == [2, 3]
    held = [data_of(simulation.trainer.federation, client) for client in (0, 2, 3)]
    inputs, targets = (torch.cat(both) for both in zip(*held, strict=True))
    right = simulation.trained()(inputs).argmax(1) == targets
    assert 0 < right.sum() < len(right)
    assert records[-1].metrics["train_accuracy"] == pytest.approx(float(right.double().mean()), abs=1e-15)
    assert records[-1].metrics.keys() == {"train_loss", "train_accuracy"}
    assert measures.summary(records)["train_accuracy (last round)"] == records[-1].metrics["train_accuracy"]


def test_of_many_training_samples_a_fixed_sample_is_measured(monkeypatch):
    train = blobs([3, 0, 60, 4], heldout=0.3).train
    everyone = _training_rows(train, 0)
    held = [train.rows(client)[0, : int(train.sizes(client))] for client in torch.tensor([[0], [2], [3]])]
    assert torch.equal(everyone, torch.cat(held))
    monkeypatch.setattr("counterpoise.engine.rounds.evaluation._MOST_TRAINED", 7)
    some = _training_rows(train, 0)
    assert len({*some.tolist()}) == 7
    assert {*some.tolist()} <= {*everyone.tolist()}
    assert torch.equal(some, _training_rows(train, 0))
    assert not torch.equal(some, _training_rows(train, 1))


def test_training_accuracy_is_refused_where_it_cannot_be_had():
    with pytest.raises(CounterpoiseError, match="which a deployment's server does not have"):
        _training_rows(Elsewhere(4), 0)
    with pytest.raises(CounterpoiseError, match="A metric cannot be called 'train_own'"):
        trained_on(metrics={"train_own": lambda outputs, targets: outputs[:, 0]})


def test_evaluation_takes_at_most_a_quarter_of_the_work_by_default():
    """Training costs three evaluations a sample: every third of `trained` may go to each kind."""
    for trained, test, heldout in ((1000, 359, 100), (10, 359, 1000), (7, 7, 7)):
        setting = Evaluation().resolve(trained, test, heldout)
        assert test / setting.every <= 0.5 * 3 * trained
        assert heldout / setting.clients_every <= 0.5 * 3 * trained
        assert setting.every >= 1
    assert Evaluation().resolve(10, 0, 0) == Evaluation(0, 0)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"every": -1}, "evaluation: every must be a whole number from 0 to 1000000000, not -1"),
        ({"clients_every": 1.5}, "evaluation: clients_every must be a whole number from 0 to 1000000000, not 1.5"),
        ({"batch": 0}, "evaluation: batch must be a whole number from 1 to 1000000000, not 0"),
        ({"train_every": -2}, "evaluation: train_every must be a whole number from 0 to 1000000000, not -2"),
    ],
)
def test_bad_evaluation_settings_are_refused_with_a_sentence(settings, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        Evaluation(**settings)


def test_metrics_of_the_users_own_are_measured():
    worst = lambda outputs, targets: -outputs.gather(1, targets[:, None]).squeeze(1)  # noqa: E731
    _, records = evaluated(1, 1, rounds=1, metrics={"worst": worst})
    assert set(records[0].metrics) == {"train_loss", "loss", "worst"}
    assert set(records[0].clients) == {"loss", "worst"}


def test_bytes_are_those_of_the_tensors_sent():
    federation = blobs([4, 5, 6])
    record = Simulation(fedavg(), federation, small(), local=Local(batch=4), cohort=2, engine=double()).advance()
    size = len(flat(small()))
    assert record.bytes_up == 2 * (8 * size + 8 + 8)  # the update, the count and the steps
    assert record.bytes_down == 2 * (8 * size + 8)  # the model and the learning rate
    assert record.seconds > 0


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, inputs):
        return self.layer(inputs), inputs


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"model": Pair().double()}, "must return one tensor with a row for each sample, .*, not a tuple of 2"),
        ({"loss": lambda outputs, targets: 1.0}, "loss must return one value per sample, shape .2,., not 1.0"),
        ({"loss": lambda outputs, targets: None}, "loss must return one value per sample"),
        ({"loss": lambda outputs, targets: outputs.nothing}, "loss cannot take"),
    ],
)
def test_a_model_or_loss_of_the_wrong_kind_is_told_in_a_sentence(given, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        started(**given)


STEPPING, WEIGHED = ("feddyn", "feddc", "adabest", "fedavgm"), ("fednova", "fedavg", "rfa")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Method("m", weigh=by_data()), "the slot weigh must be a tuple of parts"),
        (lambda: Method("m", weigh=(Part("a/b"),)), "must not be empty or contain a slash"),
        (
            lambda: Method("m", combine=(mean(), by_data()), update=(server_step(),)),
            r"A mean needs weights, and no part that acts before it has set any\. .* into the slot weigh; a part of your",
        ),
        (
            lambda: Method("m", weigh=(by_data(),), update=(server_step(), mean())),
            "server's step needs one update, and no part that acts before it has made one",
        ),
        *(
            (lambda name=name: METHODS.make(name).replacing(combine=()), "needs one update, and no")
            for name in STEPPING
        ),
        *((lambda name=name: METHODS.make(name).replacing(weigh=()), "needs weights, and no") for name in WEIGHED),
        (
            lambda: fedavg().adding(trust=Part("lost", apply=lambda round: None)),
            "part lost: apply must return the round",
        ),
        (
            lambda: fedavg().adding(weigh=Part("odd", apply=lambda round: round.but(weights=torch.ones(7)))),
            r"part odd: weights must have the shape \[3\], .* not \[7\]",
        ),
        (lambda: Part("a", when_lost=3), "part a: when_lost must say in a text what happens .* not 3"),
    ],
)
def test_a_method_put_together_wrongly_is_told_in_a_sentence(make, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        Simulation(make(), blobs([4, 5, 6]), small(), engine=double()).advance()


@pytest.mark.parametrize(
    "method",
    [Method("m"), Method("m", weigh=(by_data(),), combine=(mean(),)), fedavg().replacing("m", update=Part("a"))],
)
def test_a_method_that_never_makes_a_new_model_is_refused_before_the_first_round(method):
    with pytest.raises(CounterpoiseError, match=r"method m has no part in its slot update .* never change. Add one"):
        Simulation(method, blobs([4, 5, 6]), small(), engine=double())


def test_a_client_that_does_not_reply_is_recorded():
    simulation = started(adversary=lambda round, cohort: cohort.keep(torch.tensor([True, False, True])))
    assert simulation.advance().outcome.excluded == {1: "it did not reply"}


def test_updates_of_a_wrong_length_are_told_in_a_sentence():
    simulation = started(adversary=lambda round, cohort: replace(cohort, updates=cohort.updates[:, 1:]))
    with pytest.raises(CounterpoiseError, match="cohort's updates have shape"):
        simulation.advance()


@pytest.mark.parametrize("steps", [0.0, -1.0, 1.5, float("nan")])
def test_a_number_of_steps_that_cannot_be_is_left_out(steps):
    def lie(round, cohort):
        return replace(cohort, steps=torch.cat([torch.tensor([steps], dtype=torch.float64), cohort.steps[1:]]))

    assert "number of steps" in started(adversary=lie).advance().outcome.excluded[0]


def test_a_cohort_at_rest_does_not_turn_the_bound_on_norms_off():
    def lie(round, cohort):
        updates = torch.zeros_like(cohort.updates)
        updates[1:, 0] = torch.tensor([1.0, 1.0, 1e9])
        return replace(cohort, updates=updates)

    assert list(started(federation=blobs([4, 5, 6, 7]), adversary=lie).advance().outcome.excluded) == [3]


def test_a_loss_that_broadcasts_over_the_batch_is_refused():
    """Outputs [B, 1] against targets [B]: the usual slip, whose mean has the right shape."""
    x, y = torch.randn(12, 6, dtype=torch.float64), torch.randn(12, dtype=torch.float64)
    federation = Federation.from_arrays(x, y, partition=cp.iid(3))
    with pytest.raises(CounterpoiseError, match=r"loss of a sample depends on the other .* take outputs\[:, 0\]"):
        started(net(nn.Linear(6, 1)), federation, loss=lambda outputs, targets: ((outputs - targets) ** 2).mean(1))


def test_the_loss_that_an_error_advises_can_be_pasted():
    """Numbers [B] as targets of outputs [B, 1]: the loss by name is the function that takes the column."""
    x, y = torch.randn(12, 4), torch.randn(12)
    federation = Federation.from_arrays(x, y, partition=cp.iid(3))
    told = {"model": nn.Linear(4, 1), "rounds": 2}
    with pytest.raises(CounterpoiseError, match="give simulate a loss, such as loss='squared-error', or a function"):
        cp.simulate("fedavg", federation, **told)
    named = cp.simulate("fedavg", federation, loss="squared-error", **told)
    own = cp.simulate("fedavg", federation, loss=lambda o, t: (o[:, 0] - t).square(), **told)
    assert named.last("train_loss") == pytest.approx(own.last("train_loss"), rel=1e-6)
    found = cp.compare(["fedavg"], federation, loss="squared-error", seeds=[0], **told)
    assert found.runs["fedavg"][0].records[-1].metrics["train_loss"] == named.last("train_loss")


def test_a_loss_by_name_that_does_not_fit_the_targets_is_refused_in_a_sentence():
    federation = Federation.from_arrays(torch.randn(12, 4), torch.randn(12), partition=cp.iid(3))
    with pytest.raises(CounterpoiseError, match="The model gives 3 numbers for a sample, and its target has 1"):
        cp.simulate("fedavg", federation, model=nn.Linear(4, 3), rounds=1, loss="squared-error")
    with pytest.raises(CounterpoiseError, match="loss cross-entropy needs class numbers"):
        cp.simulate("fedavg", federation, model=nn.Linear(4, 1), rounds=1, loss="cross-entropy")


def test_one_reply_of_each_client_that_was_asked_is_taken():
    def lie(round, cohort):
        return replace(cohort, ids=(0, 0, 99))

    record = started(adversary=lie).advance()
    assert record.outcome.excluded == {
        0: "it replied more than once",
        1: "it did not reply",
        2: "it did not reply",
        99: "it was not asked",
    }
    with pytest.raises(CounterpoiseError, match=r"must return the changed cp\.Cohort, not NoneType"):
        started(adversary=lambda round, cohort: None).advance()


def test_a_function_for_an_adversary_that_was_given_alone_is_told_where_it_goes():
    with pytest.raises(CounterpoiseError, match=r"not int\. For a function .* give adversary=cp\.Adversary\(clients="):
        started(adversary=lambda cohort, acting: cohort).advance()
    with pytest.raises(CounterpoiseError, match=r"An adversary's reply .* cp\.Cohort, not Tensor"):
        started(adversary=cp.Adversary(reply=lambda cohort, acting: acting)).advance()
    with pytest.raises(CounterpoiseError, match=r"^Adversary: there are only 3 clients, so 9 of them cannot act\."):
        started(adversary=cp.Adversary(clients=9, reply=lambda cohort, acting: cohort))


@pytest.mark.parametrize(
    "wrong", [{"a": torch.zeros(2)}, {"b": torch.zeros(3)}, {"a": torch.zeros(3, dtype=torch.float64)}]
)
def test_a_part_returns_the_state_it_declared(wrong):
    part = Part("odd", server_state=lambda start: {"a": torch.zeros(3)}, apply=lambda round: round.but(state=wrong))
    with pytest.raises(CounterpoiseError, match="part odd: its server_state must keep its names, shapes and types"):
        Simulation(fedavg().adding(trust=part), blobs([4, 5]), small(), engine=double()).advance()


def test_claims_too_large_to_count_are_left_out():
    def lie(round, cohort):
        return replace(cohort, examples=torch.tensor([1.7e308, 1.7e308, 4.0], dtype=torch.float64))

    record = started(adversary=lie).advance()
    assert set(record.outcome.excluded) == {0, 1}
    assert record.outcome.weights == {2: 1.0}


@pytest.mark.parametrize("asked", [None, False, True])
def test_onednn_is_as_the_setting_says_for_the_time_of_a_round(asked):
    seen, before = [], torch.backends.mkldnn.enabled

    def loss(outputs, targets):
        seen.append(torch.backends.mkldnn.enabled)
        return F.cross_entropy(outputs, targets, reduction="none")

    simulation = started(loss=loss, engine=replace(double(), onednn=asked))
    seen.clear()
    simulation.advance()
    assert set(seen) == {simulation.engine.onednn}
    assert simulation.engine.onednn in ((True, False) if asked is None else (asked,))
    assert torch.backends.mkldnn.enabled == before


def work(steps, rounds, share=None):
    count = len(steps) if share is None else share
    return making.Work(torch.tensor(steps) * 5, torch.tensor(steps), 5, 1000, count, count, rounds)


def test_compiling_pays_from_the_round_in_which_its_time_is_saved():
    saved = 3 * 6 * (8e-5 + 1.4e-11 * 100 * 61_706)  # a round of three passes with six steps of 100 clients
    enough = math.ceil(30 / saved)
    for rounds, pays in ((enough - 1, False), (enough, True), (0, False)):
        assert making.compiling_pays(work([6] * 100, rounds), 3, 61_706, 100) is pays
    assert making.compiling_pays(work([6] * 100, enough // 4 + 1), 12, 61_706, 100)  # more passes
    assert making.compiling_pays(work([6] * 100, enough // 4), 3, 10**6, 100)  # more parameters
    assert making.compiling_pays(work([6] * 100, enough // 2), 3, 61_706, 10)  # ten chunks, and ten times the steps
    assert not making.compiling_pays(work([6] * 100, enough, share=10), 3, 61_706, 100)  # a small cohort
    assert not making.compiling_pays(work([0, 0], 10**6), 3, 61_706, 100)  # a deployment's server trains nobody


def test_every_width_of_unequal_clients_is_compiled():
    # Sixteen clients: 16 of them take the first step, four go on to the tenth.
    saved = 1 * (8e-5 + 1.4e-11 * 16 * 1000) + 9 * (8e-5 + 1.4e-11 * 4 * 1000)
    enough = math.ceil(2 * 30 / saved)
    steps = [1] * 12 + [10] * 4
    assert making.compiling_pays(work(steps, enough), 1, 1000, 16)
    assert not making.compiling_pays(work(steps, enough - 1), 1, 1000, 16)


@pytest.mark.parametrize(("rounds", "compiles"), [(2, False), (10**6, True)])
def test_compile_auto_is_settled_before_the_first_round_and_kept(rounds, compiles, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(engine_settings, "use_compiled_steps", lambda *_: True)  # as on a GPU
    local = cp.Local(epochs=2, batch=2)
    engine = Engine(device="cpu", backend="batched", compile="auto")
    blob = blobs([4, 5, 6], heldout=0.2)
    setting = {"model": small(), "engine": engine, "local": local, "on_round": lambda record: True}
    run = cp.simulate("fedavg", blob, rounds=rounds, out=tmp_path / "run", **setting)
    assert run.settings["engine"]["compile"] is compiles
    monkeypatch.undo()
    run = cp.simulate("fedavg", blob, rounds=rounds, out=tmp_path / "cpu", **setting)
    assert run.settings["engine"]["compile"] is False
    assert not caplog.records  # nobody asked for it outright
    with pytest.raises(CounterpoiseError, match="compile must be true or false, or 'auto', not 'yes'"):
        Engine(compile="yes")
