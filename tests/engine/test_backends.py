"""Both backends, every chunk size and every number of threads compute the same."""

from dataclasses import replace

import pytest
import torch
from helpers import BACKENDS, ENGINES, assert_close, blobs, double, flat, fresh, net, run, small
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.engine.backends.refusals import reason_of
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation
from counterpoise.flat import Layout
from counterpoise.local import Local, adam, sgd
from counterpoise.method import Part
from counterpoise.methods import fedavg, fedprox

SIZES = [1, 9, 4, 13, 6]  # with batches of 4: partial last batches, and 1 to 4 steps


class Loose(nn.Module):
    """Dropout as a function, between two layers."""

    def __init__(self, rate):
        super().__init__()
        self.first, self.second, self.rate = nn.Linear(6, 8), nn.Linear(8, 3), rate

    def forward(self, inputs):
        return self.second(F.dropout(torch.tanh(self.first(inputs)), self.rate, self.training))


class Noisy(nn.Module):
    """A model that draws its own normal and uniform numbers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, inputs):
        if self.training:
            inputs = inputs + 0.1 * torch.randn_like(inputs) + torch.rand(inputs.shape[0], 1, dtype=inputs.dtype)
        return self.layer(inputs)


class Tied(nn.Module):
    """One matrix used twice."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(6, 6)
        self.decode = nn.Linear(6, 6)
        self.decode.weight = self.encode.weight

    def forward(self, inputs):
        return self.decode(torch.tanh(self.encode(inputs)))[:, :3]


class Partly(nn.Module):
    """A frozen first layer and a buffer; only the last layer learns."""

    def __init__(self):
        super().__init__()
        self.frozen, self.last = nn.Linear(6, 5), nn.Linear(5, 3)
        self.register_buffer("shift", torch.linspace(-1, 1, 5, dtype=torch.float64))
        self.frozen.requires_grad_(False)

    def forward(self, inputs):
        return self.last(torch.tanh(self.frozen(inputs)) + self.shift)


def dropped(rate=0.5):
    return net(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(rate), nn.Linear(8, 3))


def loose(rate=0.4):
    return fresh(Loose(rate))


def grouped(rate=0.3):
    return net(
        nn.Conv2d(1, 4, 3),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Dropout2d(rate),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 3),
    )


def trained(model, local, engine, shape=(6,), method=None, rounds=2, seed=3, sizes=SIZES, **others):
    federation = blobs(sizes, shape=shape)
    simulation = Simulation(
        method or fedprox(mu=0.1), federation, model, local=local, seed=seed, engine=double(**engine), **others
    )
    return run(simulation, rounds)


CASES = {
    "plain": (small, sgd(0.3), {}),
    "momentum and decay": (small, sgd(0.2, momentum=0.9, nesterov=True, weight_decay=0.05), {}),
    "adam": (small, adam(0.02, weight_decay=0.01), {}),
    "steps": (small, sgd(0.2), {"steps": [7, 1, 3, 2, 5]}),
    "nn.Dropout": (dropped, sgd(0.3), {}),
    "F.dropout": (loose, sgd(0.3, momentum=0.5), {}),
    "random functions": (lambda: fresh(Noisy()), sgd(0.3), {}),
    "tied weights": (lambda: fresh(Tied()), sgd(0.3, momentum=0.5), {}),
    "frozen parameters and buffers": (lambda: fresh(Partly()), sgd(0.3), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_all_engines_agree(case):
    make, optimizer, more = CASES[case]
    local = Local(epochs=2, batch=4, optimizer=optimizer, **more)
    first, *others = [trained(make(), local, engine) for engine in ENGINES]
    for other in others:
        assert_close(first, other, first - flat(make()))


@pytest.mark.parametrize(
    ("augment", "bare", "side"),
    [
        (cp.augment.flip_and_crop(2), None, 8),
        (cp.augment.flip_and_crop(2, "reflect", 0.5), cp.augment.flip(), 8),
        (cp.augment.crop(0, size=8), lambda inputs, keys: inputs[..., 1:9, 1:9], 11),
    ],
)
def test_all_engines_agree_on_pictures_with_augmentation_group_norm_and_dropout(augment, bare, side):
    local = Local(epochs=2, batch=4, optimizer=sgd(0.1, momentum=0.9), augment=augment)
    first, *others = [trained(grouped(), local, engine, shape=(1, side, side)) for engine in ENGINES]
    for other in others:
        assert_close(first, other, first - flat(grouped()))
    other = replace(local, augment=bare)
    assert not torch.allclose(first, trained(grouped(), other, ENGINES[0], shape=(1, side, side)))


@given(
    sizes=st.lists(st.integers(1, 11), min_size=2, max_size=6),
    chunk=st.integers(1, 7),
    batch=st.integers(1, 6),
    epochs=st.integers(1, 2),
    lr=st.floats(0.01, 0.5),
    momentum=st.sampled_from([0.0, 0.9]),
    data=st.data(),
)
@settings(max_examples=15)
def test_any_work_is_the_same_on_both_backends(sizes, chunk, batch, epochs, lr, momentum, data):
    cohort = data.draw(st.integers(1, len(sizes)))
    local = Local(epochs=epochs, batch=batch, optimizer=sgd(lr, momentum=momentum))
    engines = [{"backend": "batched", "chunk": chunk}, {"backend": "per-client"}]
    one, two = (trained(small(), local, engine, sizes=sizes, cohort=cohort) for engine in engines)
    assert_close(one, two, one - flat(small()))


@given(sizes=st.lists(st.integers(1, 9), min_size=2, max_size=5), chunk=st.integers(1, 6), batch=st.integers(1, 5))
@settings(max_examples=8)
def test_dropout_is_the_same_on_both_backends_for_any_sizes(sizes, chunk, batch):
    local = Local(batch=batch, optimizer=sgd(0.2))
    engines = [{"backend": "batched", "chunk": chunk}, {"backend": "per-client"}]
    one, two = (trained(dropped(), local, engine, sizes=sizes) for engine in engines)
    assert_close(one, two, one - flat(dropped()))


@pytest.mark.parametrize("make", [dropped, loose, grouped])
def test_dropout_changes_training(make):
    local, shape = Local(batch=4, optimizer=sgd(0.2)), (1, 8, 8) if make is grouped else (6,)
    with_it, without = (trained(make(rate), local, {"backend": "per-client"}, shape=shape) for rate in (0.4, 0.0))
    assert not torch.allclose(with_it, without)


def test_threads_do_not_change_a_bit():
    local = Local(epochs=2, batch=4, optimizer=sgd(0.3))
    one, two = (trained(dropped(), local, {"backend": "per-client", "threads": threads}) for threads in (1, 2))
    assert torch.equal(one, two)


@pytest.mark.parametrize("engine", [ENGINES[1], ENGINES[-1]])
def test_frozen_parameters_and_buffers_stay(engine):
    model = fresh(Partly())
    simulation = Simulation(
        fedavg(), blobs(SIZES), model, local=Local(batch=4, optimizer=sgd(0.3)), engine=double(**engine)
    )
    run(simulation)
    after = simulation.trained()
    assert torch.equal(after.frozen.weight, model.frozen.weight)
    assert torch.equal(after.shift, model.shift)
    assert not torch.equal(after.last.weight, model.last.weight)
    assert simulation.trainer.layout.size == 5 * 3 + 3


@pytest.mark.parametrize("engine", [ENGINES[1], ENGINES[-1]])
def test_tied_weights_stay_tied_and_learn_from_both_uses(engine):
    simulation = Simulation(
        fedavg(), blobs([5]), fresh(Tied()), local=Local(batch=5, optimizer=sgd(0.3)), engine=double(**engine)
    )
    run(simulation, 1)
    after, model = simulation.trained(), fresh(Tied())
    federation = blobs([5])
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    F.cross_entropy(model(federation.base.inputs), federation.base.targets).backward()
    optimizer.step()
    assert after.encode.weight is after.decode.weight
    assert torch.allclose(after.encode.weight, model.encode.weight, rtol=0, atol=1e-13)
    assert torch.allclose(after.decode.bias, model.decode.bias, rtol=0, atol=1e-13)


def test_the_users_module_is_left_alone():
    for engine in (ENGINES[1], ENGINES[-1]):
        model = small()
        before = flat(model).clone()
        run(Simulation(fedavg(), blobs(SIZES), model, local=Local(batch=4), engine=double(**engine)))
        assert torch.equal(flat(model), before)
        assert model.training


def test_a_recurrent_model_learns_per_client():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.last = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, inputs):
            return self.last(self.gru(inputs)[0][:, -1])

    federation = blobs([7], shape=(5, 3))
    model = fresh(Recurrent())
    simulation = Simulation(
        fedavg(), federation, model, local=Local(batch=7, optimizer=sgd(0.5)), engine=double(backend="per-client")
    )
    run(simulation, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(federation.base.inputs), federation.base.targets).backward()
        optimizer.step()
    assert torch.allclose(simulation.server.model, flat(model), rtol=0, atol=1e-12)


def test_a_model_that_vmap_refuses_is_told_of_the_other_backend():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, inputs):
            outputs = self.layer(inputs)
            return outputs if outputs.sum() > 0 else 2 * outputs

    local = Local(batch=4)
    with pytest.raises(CounterpoiseError, match=r"cannot be trained as one batch of clients.*backend='per-client'"):
        run(Simulation(fedavg(), blobs(SIZES), fresh(Branching()), local=local, engine=double(backend="batched")))
    model = fresh(Branching())
    assert not torch.equal(
        run(Simulation(fedavg(), blobs(SIZES), model, local=local, engine=double(backend="per-client"))), flat(model)
    )


WRITES = "it writes into a tensor made beforehand"
WHY = {
    "if": ("a tensor becomes a Python value", lambda z: z if z.sum() > 0 else 2 * z),
    "mask": ("a result's shape depends on the data", lambda z: z + 0 * z.detach()[z.detach() > 0].sum()),
    "copy_": (WRITES, lambda z: torch.zeros(z.shape, dtype=z.dtype).copy_(z)),
    "add_": (WRITES, lambda z: torch.zeros(z.shape, dtype=z.dtype).add_(z)),
    "numpy": ("it reads a tensor's memory", lambda z: z + 0 * torch.from_numpy(z.detach().numpy())),
}


@pytest.mark.parametrize(("why", "own"), WHY.values(), ids=WHY)
@pytest.mark.parametrize("place", ["model", "loss"])
def test_what_cannot_be_batched_is_told_in_our_words_with_its_line(why, own, place):
    class Own(nn.Linear):
        def forward(self, inputs):
            return own(super().forward(inputs))

    def loss(outputs, targets):
        return F.cross_entropy(own(outputs), targets, reduction="none")

    given = (fresh(Own(6, 3)), None) if place == "model" else (fresh(nn.Linear(6, 3)), loss)
    with pytest.raises(CounterpoiseError) as told:
        Simulation(fedavg(), blobs(SIZES), given[0], loss=given[1], engine=double(backend="batched"))
    assert f"<lambda> in test_backends.py, line {own.__code__.co_firstlineno}: {why}" in str(told.value)
    assert not any(word in str(told.value) for word in ("vmap", "PyTorch", "file an issue"))


def test_a_cause_that_is_not_known_is_told_by_its_first_sentence():
    assert reason_of(RuntimeError("vmap: no rule for x. Please file an issue.\nMore.")) == "no rule for x"
    assert reason_of(RuntimeError()) == "RuntimeError"


@pytest.mark.parametrize("hook", ["begin", "after_epoch", "finish"])
def test_a_part_that_looks_at_a_number_is_told_of_with_the_way_out(hook):
    """Python's `if` cannot be taken for many clients at once."""

    def look(client, *given):
        if float(client.examples) > 0:
            return given[0] if hook == "finish" else {}

    method = fedavg()
    method = replace(method, local=(*method.local, Part("looking", **{"begin": lambda client: {}, hook: look})))
    local = Local(batch=4)
    with pytest.raises(CounterpoiseError, match=r"a part of the method cannot be trained as one batch.*per-client"):
        run(Simulation(method, blobs(SIZES), small(), local=local, engine=double(backend="batched")))
    run(Simulation(method, blobs(SIZES), small(), local=local, engine=double(backend="per-client")))


def test_byte_inputs_are_scaled_and_shifted_in_the_batch():
    federation = blobs([6, 3])
    raw = (federation.base.inputs * 20 + 128).clamp(0, 255).to(torch.uint8)
    real = raw.double() * 0.05 - 2.0
    split = federation.train.owners
    local = Local(batch=4, optimizer=sgd(0.2))
    models = []
    for inputs in (raw, real):
        fed = Federation.from_arrays(
            inputs, federation.base.targets, partition=split, heldout=0, scale=0.05, shift=-2.0
        )
        models.append(run(Simulation(fedavg(), fed, small(), local=local, engine=double())))
    assert_close(*models, models[0] - flat(small()), 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_of_a_stack_of_models_are_those_of_each(backend):
    federation, module = blobs(SIZES), net(nn.Linear(6, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 3))
    simulation = Simulation(fedavg(), federation, module, engine=double(backend=backend, chunk=2))
    generator = torch.Generator().manual_seed(1)
    models = torch.randn(5, simulation.trainer.layout.size, generator=generator, dtype=torch.float64)
    outputs = simulation.backend.outputs(models, federation.base.inputs)
    assert outputs.shape == (5, len(federation.base), 3)
    for model, output in zip(models, outputs, strict=True):
        a, b, c, d = model.split([24, 4, 12, 3])
        expected = torch.tanh(federation.base.inputs @ a.view(4, 6).T + b) @ c.view(3, 4).T + d
        assert torch.allclose(output, expected, rtol=0, atol=1e-12)
        assert torch.allclose(simulation.backend.output(model, federation.base.inputs), expected, rtol=0, atol=1e-12)


def test_the_layout_names_each_place_of_the_vector():
    model = net(nn.Linear(2, 3), nn.Linear(3, 1))
    layout = Layout.of(model)
    assert layout.names == ("0.weight", "0.bias", "1.weight", "1.bias")
    assert layout.layers.tolist() == [0] * 9 + [1] * 4
    vector = torch.arange(13.0)
    assert torch.equal(layout.flatten(layout.unflatten(vector)), vector)
    assert layout.unflatten(vector)[2].tolist() == [[9.0, 10.0, 11.0]]
