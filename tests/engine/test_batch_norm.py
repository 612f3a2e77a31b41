"""Batch norm in each choice, beside torch's own layers in a plain loop."""

import copy
import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import BACKENDS, assert_close, blobs, by_torch, double, flat, fresh, net, run
from played import play
from torch import nn
from torch.nn import functional as F

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.engine.acceleration import scripted
from counterpoise.engine.backends import batched, perclient
from counterpoise.engine.rounds.lockstep import Lockstep, why_apart
from counterpoise.errors import CounterpoiseError
from counterpoise.local import Local, sgd
from counterpoise.method import Part
from counterpoise.methods import METHODS, ditto, fedavg
from counterpoise.models.batch_norm import NORMS

SIZES = [2, 3, 7, 10, 4]
"""With batches of 4, the last one has 2, 3, 3, 2 and 4 samples: torch refuses a single one."""


class Pictures(nn.Module):
    """A convolution, and norms of pictures, of sequences and of flat features; one of them is used twice."""

    def __init__(self, **options):
        super().__init__()
        self.conv, self.first = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, **options)
        self.second = nn.BatchNorm1d(4, affine=False, **options)
        self.wide, self.third = nn.Linear(16, 6), nn.BatchNorm1d(6, **options)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = torch.tanh(self.first(self.conv(x)))
        x = self.second(torch.tanh(self.second(x.flatten(2))))[..., ::4]
        return self.head(torch.tanh(self.third(self.wide(x.flatten(1)))))


def pictures(**options):
    return fresh(Pictures(**options))


def flat_net(*extra):
    return net(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), *extra, nn.Linear(5, 3))


def data(sizes=SIZES, **settings):
    return blobs(sizes, shape=(1, 6, 6), **settings)


def simulate(norm, method=None, federation=None, model=None, **settings):
    local = Local(epochs=2, batch=4, optimizer=sgd(0.2, momentum=0.5))
    given = {"local": local, "engine": double()} | settings
    chosen = cp.models.with_norm(pictures() if model is None else model, norm)
    return Simulation(method or fedavg(), federation or data(), chosen, seed=2, **given)


def momentum(parameters, lr):
    return torch.optim.SGD(parameters, lr, momentum=0.5)


# ---------------------------------------------------------------- training


NORMALISED = ("first.", "second.", "third.")


def plain_rounds(norm, rounds, local, **options):
    """Federated rounds by torch's own layers: after each, the server's module and every client's.

    What clients share is averaged by data: with "local" all but the norms, with "average" and "batch" all weights, and
    with "average" the buffers too.
    """
    server, weights = pictures(**options), torch.tensor(SIZES).double() / sum(SIZES)
    clients = [copy.deepcopy(server) for _ in SIZES]
    for round in range(1, rounds + 1):
        for client, model in enumerate(clients):
            by_torch(model.train(), data(), client, momentum, local, round, seed=2)
        for name, value in server.state_dict().items():
            each = [model.state_dict()[name] for model in clients]
            own = name.startswith(NORMALISED) if norm == "local" else name.endswith("tracked")
            if not own:
                value.copy_(sum(weight * one for weight, one in zip(weights, each, strict=True)))
                for one in each:
                    one.copy_(value)
        yield server, clients


def buffers(model, name):
    return torch.cat([getattr(layer, name).reshape(-1).double() for layer in (model.first, model.second, model.third)])


def assert_statistics(found, model):
    start = torch.cat((torch.zeros(14), torch.ones(14))).double()
    own = torch.cat((buffers(model, "running_mean"), buffers(model, "running_var")))
    assert_close(torch.cat((found["mean"], found["variance"])), own, own - start, 1e-9)


@pytest.mark.parametrize("engine", [{"backend": "per-client"}, *({"backend": "batched", "chunk": n} for n in (2, 5))])
@pytest.mark.parametrize("norm", NORMS)
def test_training_is_that_of_torchs_layers_step_for_step(norm, engine):
    """Parameters and running statistics, for clients of unequal sizes whose last batches are padded in a chunk."""
    options = {"eps": 1e-3, "momentum": 0.3}
    simulation = simulate(norm, model=pictures(**options), engine=double(**engine))
    before = flat(pictures())
    for server, clients in plain_rounds(norm, 2, simulation.trainer.program.local, **options):
        simulation.advance()
        assert_close(simulation.server.model, flat(server), flat(server) - before, 1e-9)
        if norm == "average":
            assert_statistics(simulation.server.state["batch-norm"], server)
        for client, model in enumerate(clients) if norm == "local" else ():
            own = simulation.client_state["batch-norm"][client]
            kept = torch.cat([p.detach().flatten() for n, p in model.named_parameters() if n.startswith(NORMALISED)])
            assert_statistics(own, model)
            assert_close(own["private"], kept, kept, 1e-9)
            assert own["batches"].tolist() == buffers(model, "num_batches_tracked").tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("norm", ["local", "average"])
def test_without_momentum_statistics_are_means_over_all_batches(norm, backend):
    simulation = simulate(norm, federation=data([10]), model=pictures(momentum=None), engine=double(backend=backend))
    model = pictures(momentum=None).train()
    for round in (1, 2):
        simulation.advance()
        by_torch(model, data([10]), 0, momentum, simulation.trainer.program.local, round, seed=2)
        found = simulation.client_state["batch-norm"][0] if norm == "local" else simulation.server.state["batch-norm"]
        assert_statistics(found, model)
        assert found["batches"].tolist() == [6 * round, 12 * round, 6 * round]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_of_one_value_becomes_the_shift(backend):
    """torch refuses it. Here the layer's output is its shift, so that only the shift and what follows learn from it."""
    simulation = simulate(
        "average", federation=blobs([1]), model=flat_net(), local=Local(), engine=double(backend=backend)
    )
    before = simulation.trainer.layout.unflatten(simulation.server.model.clone())
    after = simulation.trainer.layout.unflatten(run(simulation, 1))
    moved = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert dict(zip(simulation.trainer.layout.names, moved, strict=True)) == {
        "0.weight": False,
        "0.bias": False,
        "1.weight": False,
        "1.bias": True,
        "3.weight": True,
        "3.bias": True,
    }
    statistics = {name: values.tolist() for name, values in simulation.server.state["batch-norm"].items()}
    assert statistics == {"mean": [0.0] * 5, "variance": [1.0] * 5, "batches": [0.0]}


def test_both_backends_agree_with_dropout_behind_a_norm():
    """Its mask and the batch's share come the same way."""
    runs = [
        run(simulate("batch", federation=blobs(SIZES), model=flat_net(nn.Dropout(0.4)), engine=double(backend=backend)))
        for backend in BACKENDS
    ]
    assert_close(*runs, runs[0] - flat(flat_net()), 1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("norm", NORMS)
def test_what_hooks_compute_counts_no_padding_and_moves_no_statistics(norm, backend):
    """A part that asks for everything at every turn, and steps along the gradient that it asked for."""

    def look(client, step, at):
        step.loss_at(at)
        step.output_at(2 * at)
        return step.gradient_at(at)

    asking = Part(
        "asking",
        begin=lambda client: {"seen": client.start.new_zeros(())},
        survey=lambda client, step: {"seen": client.memo["seen"] + look(client, step, client.start).sum()},
        loss=lambda client, step, w: 0 * step.loss_at(w),
        gradient=lambda client, step, g: look(client, step, step.w),
        after_step=lambda client, step: {"seen": client.memo["seen"] + look(client, step, step.w).sum()},
    )
    plain, asked = (
        simulate(norm, method, engine=double(backend=backend)) for method in (fedavg(), fedavg().adding(local=asking))
    )
    assert_close(run(asked), run(plain), plain.server.model - flat(pictures()), 1e-12)
    for one, other in zip(statistics(plain), statistics(asked), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


def statistics(simulation):
    """All running statistics of a run, wherever they are."""
    stores = [[*store] and store.gather([*store]) for store in simulation.client_state.values()]
    kept = [*simulation.server.state.values(), *stores]
    return [named[name] for named in kept for name in ("mean", "variance") if named and name in named]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("norm", ["local", "average"])
def test_scripted_steps_move_them_too(norm, backend, monkeypatch):
    for module in (batched, perclient):
        monkeypatch.setattr(module, "_OFTEN", 0)
    calls, call = [], scripted.ScriptedStep.__call__
    monkeypatch.setattr(scripted.ScriptedStep, "__call__", lambda *given: calls.append(1) or call(*given))
    model = flat_net()
    made = [
        simulate(norm, federation=blobs(SIZES), model=model, engine=double(backend=backend, record=record))
        for record in (True, False)
    ]
    runs = [run(one, 3) for one in made]
    assert calls
    assert torch.equal(*runs)
    assert all(map(torch.equal, *map(statistics, made)))


@pytest.mark.parametrize("norm", NORMS)
def test_captured_chunks_compute_what_plain_ones_do(norm, monkeypatch):
    play(monkeypatch)
    made = [simulate(norm, METHODS.make("scaffold"), cohort=4, engine=double(backend="batched", chunk=2)) for _ in "ab"]
    made[0].backend.captures = made[0].overlaps = True
    runs = [run(one, 3) for one in made]
    assert torch.allclose(*runs, rtol=1e-12, atol=1e-14)
    for one, other in zip(*map(statistics, made), strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("norm", NORMS)
def test_in_bfloat16_statistics_stay_precise(norm):
    engines = (cp.Engine(bf16=True, device="cpu"), cp.Engine(backend="batched", device="cpu"))
    settings = {"federation": blobs([9, 12], heldout=0.4), "local": Local(batch=8, optimizer=sgd(0.01))}
    half, full = (simulate(norm, model=flat_net(), engine=engine, **settings) for engine in engines)
    records = [one.advance(last=True) for one in (half, full)]
    for one, other in zip(statistics(half), statistics(full), strict=True):
        assert one.dtype == torch.float32
        assert not torch.equal(one, one.bfloat16().float())
        assert (one - other).norm() < 0.05 * other.norm()
    name = "personal_loss" if norm == "local" else "loss"
    losses = [torch.tensor([*record.clients[name].values()]) for record in records]
    assert torch.allclose(*losses, rtol=0.05)


# ---------------------------------------------------------------- evaluation


def held(**settings):
    rng = np.random.default_rng(7)
    test = (rng.standard_normal((21, 1, 6, 6)), rng.integers(0, 3, 21))
    return data([9, 6, 12, 1], heldout=0.4, test=test, **settings)


def by_hand(vector, inputs, targets, own=None):
    """Loss and accuracy of a model by torch's own layers: with these statistics, or else with those of the whole set."""
    model = pictures().train(own is None)
    torch.nn.utils.vector_to_parameters(vector, model.parameters())
    channels = [4, 4, 6]
    for name, buffer in (("mean", "running_mean"), ("variance", "running_var")) if own is not None else ():
        for layer, values in zip((model.first, model.second, model.third), own[name].split(channels), strict=True):
            getattr(layer, buffer).copy_(values)
    with torch.no_grad():
        outputs = model(inputs)
    return float(F.cross_entropy(outputs, targets)), float((outputs.argmax(1) == targets).double().mean())


def heldout(federation, client):
    return federation.base.take(federation.heldout.rows(torch.tensor([client]))[0], torch.float64)


EACH = cp.Evaluation(every=1, clients_every=1, train_every=1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("batch", [2, 500])
@pytest.mark.parametrize("norm", ["average", "batch"])
def test_the_servers_model_is_measured_with_its_statistics_or_on_whole_sets(norm, batch, backend):
    federation = held()
    engine, evaluation = double(backend=backend), replace(EACH, batch=batch)
    simulation = simulate(norm, ditto(), federation, evaluation=evaluation, engine=engine)
    record, model = simulation.advance(), simulation.server.model
    own = simulation.server.state.get("batch-norm")
    loss, accuracy = by_hand(model, federation.test.inputs, federation.test.targets, own)
    assert record.metrics["loss"] == pytest.approx(loss, abs=1e-12)
    assert record.metrics["accuracy"] == pytest.approx(accuracy, abs=1e-12)
    rows = torch.cat([federation.train.rows(torch.tensor([c]))[0] for c in range(4)])
    train = by_hand(model, *federation.base.take(rows, model.dtype), own)
    assert record.metrics["train_accuracy"] == pytest.approx(train[1])
    for client in range(3):
        v, samples = simulation.client_state["personal-model"][client]["v"], heldout(federation, client)
        assert record.clients["loss"][client] == pytest.approx(by_hand(model, *samples, own)[0], abs=1e-12)
        assert record.clients["personal_loss"][client] == pytest.approx(by_hand(v, *samples, own)[0], abs=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_with_local_norms_each_client_is_measured_by_its_own_model(method, backend):
    federation = held()
    engine = double(backend=backend)
    simulation = simulate("local", METHODS.make(method), federation, cohort=3, evaluation=EACH, engine=engine)
    record, places = simulation.advance(), simulation.trainer.program.parts[0].private
    assert {*record.metrics} == {"train_loss"}  # no server's model
    assert {*record.clients} == {"personal_loss", "personal_accuracy"}
    seen = [client for client in record.cohort if client != 3]  # who holds a single sample
    assert sorted(record.clients["personal_loss"]) == seen
    for client in seen:
        own = simulation.client_state["batch-norm"][client]
        model = simulation.server.model.scatter(0, places, own["private"])
        if method == "ditto":
            model = simulation.client_state["personal-model"][client]["v"]
        loss, accuracy = by_hand(model, *heldout(federation, client), own)
        assert record.clients["personal_loss"][client] == pytest.approx(loss, abs=1e-12)
        assert record.clients["personal_accuracy"][client] == pytest.approx(accuracy)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("norm", NORMS)
def test_runs_in_one_batch_compute_what_they_compute_alone(norm, backend):
    def made(seed):
        settings = {"federation": held(seed=seed), "engine": double(backend=backend), "evaluation": EACH}
        return simulate(norm, METHODS.make("fedprox"), **settings)

    alone, joint = [made(seed) for seed in (0, 1)], [made(seed) for seed in (0, 1)]
    assert not why_apart(*joint)
    lockstep = Lockstep(joint)
    for _ in range(2):
        expected, records = [one.advance() for one in alone], lockstep.advance([(one, False) for one in joint])
        for own, other in zip(expected, records, strict=True):
            assert other.metrics == pytest.approx(own.metrics, abs=1e-10)
            assert {name: pytest.approx(each, abs=1e-10) for name, each in own.clients.items()} == other.clients
    for one, other in zip(alone, joint, strict=True):
        assert_close(one.server.model, other.server.model, one.server.model - one.trainer.start)
        for its, others in zip(statistics(one), statistics(other), strict=True):
            assert torch.allclose(its, others, rtol=0, atol=1e-10)


def test_runs_with_other_choices_train_apart():
    runs = [simulate(norm) for norm in NORMS]
    assert all(why_apart(a, b) == "their models differ" for a in runs for b in runs if a is not b)


def test_runs_that_evaluate_in_other_pieces_are_measured_apart():
    sizes = []

    class Watched(nn.Linear):
        def forward(self, x):
            sizes.append(len(x)) if not self.training else None
            return super().forward(x)

    joint = [
        Simulation(
            fedavg(),
            blobs([6, 6], heldout=0, test=(np.zeros((9, 6)), np.zeros(9, dtype=int))),
            net(Watched(6, 3)),
            engine=double(backend="per-client"),
            evaluation=cp.Evaluation(every=1, clients_every=0, batch=batch),
        )
        for batch in (3, 9)
    ]
    lockstep = Lockstep(joint)
    sizes.clear()
    lockstep.advance([(one, False) for one in joint])
    assert sorted(sizes) == [3, 3, 3, 9]


# ---------------------------------------------------------------- what is refused, and what is kept


class Own(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x).relu()


class Frozen(nn.Sequential):
    def train(self, mode=True):
        super().train(mode)
        self[1].eval()
        return self


class Rows(nn.Module):
    """A norm over the rows of all samples together."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(3), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.norm(x.reshape(-1, 3)).view_as(x))


def test_the_refusal_names_the_choices():
    with pytest.raises(
        CounterpoiseError,
        match=r"'1' \(BatchNorm1d\).*with_norm\(model, norm\).*'local', 'average', 'batch'.*with_group_norm",
    ):
        Simulation(fedavg(), blobs([4]), flat_net())


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: cp.models.with_norm(3, "batch"), "with_norm takes a module, such as .*, not 3"),
        (lambda: cp.models.with_norm(flat_net(), "lokal"), "There is no norm 'lokal'"),
        (lambda: cp.models.with_norm(nn.Linear(2, 2), "batch"), "the model has no batch norm"),
        (
            lambda: cp.models.with_norm(net(nn.BatchNorm1d(4, track_running_stats=False)), "average"),
            r"'0' \(BatchNorm1d\) keeps no running statistics",
        ),
        (
            lambda: simulate("local", METHODS.make("feda4"), blobs([4, 4], probe=1), flat_net()).advance(),
            "the server's models have no batch-norm statistics",
        ),
        (lambda: cp.models.with_norm(net(nn.SyncBatchNorm(4)), "batch"), r"'0' \(SyncBatchNorm\) takes the statistics"),
        (lambda: cp.models.with_norm(nn.LazyBatchNorm1d(), "batch"), r"\(LazyBatchNorm1d\) does not know its channels"),
        (lambda: cp.models.with_norm(net(Own(4)), "batch"), r"'0' \(Own\) has a forward of its own"),
        (
            lambda: Simulation(
                fedavg(), blobs([4]), net(*cp.models.with_norm(flat_net(), "batch"), nn.BatchNorm1d(3)), engine=double()
            ),
            "batch norms '4' and '1' have different choices, None and 'batch'",
        ),
        (
            lambda: simulate("batch", model=Frozen(nn.Linear(6, 3), nn.BatchNorm1d(3)), federation=blobs([4])),
            r"'1' \(BatchNorm1d\) in evaluation mode while it trains",
        ),
        (
            lambda: simulate("batch", model=Rows().double(), federation=blobs([4])).advance(),
            "'norm' is given 8 rows for a batch of 4 samples",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(make, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        make()


@pytest.mark.parametrize("norm", NORMS)
def test_the_users_own_model_is_left_alone_and_the_trained_one_is_plain(norm):
    model = pictures()
    before = copy.deepcopy(model.state_dict())
    simulation = simulate(norm, model=model, federation=held(), evaluation=EACH)
    record = simulation.advance()
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    found, test = simulation.trained(), held().test
    assert not found.training
    if norm == "batch":
        assert found.first.running_mean is None
    if norm == "local":  # nothing of a client's
        assert torch.equal(found.first.running_mean, before["first.running_mean"])
        assert torch.equal(found.first.weight, before["first.weight"])
    else:
        assert F.cross_entropy(found(test.inputs), test.targets).item() == pytest.approx(record.metrics["loss"])


@pytest.mark.parametrize("norm", NORMS)
def test_a_run_keeps_its_choice_and_resumes_bit_for_bit(norm, tmp_path):
    federation, plain = blobs([8, 9, 5], heldout=0.2), flat_net()
    model = cp.models.with_norm(copy.deepcopy(plain), norm)
    given = {"cohort": 2, "engine": double(), "local": Local(batch=4)}
    cp.simulate("fedavg", federation, model=model, rounds=2, out=tmp_path / "run", **given)
    resumed = cp.resume(tmp_path / "run", rounds=4, federation=federation, model=model)
    assert resumed.settings["model"]["norm"] == norm
    whole = cp.simulate("fedavg", federation, model=model, rounds=4, **given)
    assert all(torch.equal(value, whole.model.state_dict()[name]) for name, value in resumed.model.state_dict().items())
    assert [record.clients for record in resumed.rounds][2:] == [record.clients for record in whole.rounds][2:]
    other = cp.models.with_norm(plain, "local" if norm != "local" else "average")
    with pytest.raises(CounterpoiseError, match=f"model given is not the one.*was '{norm}'"):
        cp.resume(tmp_path / "run", rounds=5, federation=federation, model=other)


def test_resnet18_runs_by_name():
    with pytest.raises(CounterpoiseError, match=r"model resnet18-bn needs the option norm: .*local, average, batch"):
        cp.models.MODELS.make("resnet18-bn")
    model = cp.models.resnet18_bn((1, 8, 8), 3, norm="batch")
    kinds = [type(m) for m in model.modules()]
    assert (kinds.count(nn.BatchNorm2d), kinds.count(nn.GroupNorm)) == (20, 0)


@pytest.mark.parametrize("norm", NORMS)
def test_resnet18_runs_in_each_choice(norm):
    federation = blobs([4, 5], shape=(1, 8, 8), heldout=0.3)
    model = functools.partial(cp.models.resnet18_bn, norm=norm)
    run = cp.simulate("fedavg", federation, model=model, rounds=1, local=Local(batch=4), evaluation=EACH)
    measured = run.rounds[0].clients["personal_loss" if norm == "local" else "loss"]
    assert all(map(math.isfinite, measured.values()))
    assert len(measured) == 2
