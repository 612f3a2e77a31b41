"""Recurrent models: step by step as torch's own, in stacks of clients, under every method; and what cannot be stacked is told."""

from __future__ import annotations

import logging

import pytest
import torch
from helpers import ALL_METHODS, BACKENDS, assert_close, blobs, differing_on_clients, double, flat, fresh, run
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from counterpoise.engine import Engine, Simulation
from counterpoise.engine.backends.making import _as_one_batch
from counterpoise.engine.clients.recurrent import Unrolled
from counterpoise.errors import CounterpoiseError
from counterpoise.local import Local, sgd
from counterpoise.method import Part
from counterpoise.methods import METHODS, feda4, fedavg, fedbac, moon, scaffold

VARIANTS = [
    {},
    {"bias": False},
    {"num_layers": 3},
    {"bidirectional": True, "num_layers": 2},
    {"batch_first": True, "bidirectional": True},
]
LAYERS = [
    *((kind, more) for kind in (nn.LSTM, nn.GRU, nn.RNN) for more in VARIANTS),
    (nn.RNN, {"nonlinearity": "relu", "num_layers": 2}),
    (nn.LSTM, {"proj_size": 2}),
    (nn.LSTM, {"proj_size": 2, "bias": False, "num_layers": 2, "bidirectional": True}),
]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def told(module: nn.Module, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """All that a recurrent module gives, the gradient of a sum over it, and that gradient's own along a direction."""
    given = module(*inputs)
    outputs = (
        [given]
        if isinstance(given, torch.Tensor)
        else [t for x in given for t in (x if isinstance(x, tuple) else (x,))]
    )
    weights = list(module.parameters())
    total = sum((t * drawn(*t.shape, seed=k)).sum() for k, t in enumerate(outputs))
    first = torch.autograd.grad(total, weights, create_graph=True)
    along = sum((g * drawn(*g.shape, seed=9)).sum() for g in first)
    return [*outputs, *first, *torch.autograd.grad(along, weights)]


@pytest.mark.parametrize(("kind", "more"), LAYERS, ids=str)
@pytest.mark.parametrize("given", [False, True])
def test_layers_step_by_step_are_torchs_with_two_derivatives(kind, more, given):
    module = fresh(kind(3, 4, **more))
    inputs = [drawn(5, 5, 3)]
    if given:  # the state to begin with
        depth = module.num_layers * (2 if module.bidirectional else 1)
        hidden = drawn(depth, 5, more.get("proj_size", 4), seed=1)
        inputs.append((hidden, drawn(depth, 5, 4, seed=2)) if kind is nn.LSTM else hidden)
    expected = told(module, *inputs)
    with Unrolled():
        found = told(module, *inputs)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert torch.allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "make",
    [nn.LSTMCell, nn.GRUCell, nn.RNNCell, lambda *sizes, bias: nn.RNNCell(*sizes, bias=bias, nonlinearity="relu")],
)
def test_cells_are_torchs_with_two_derivatives(make, bias):
    cell = fresh(make(3, 4, bias=bias))
    inputs = [drawn(5, 3)]
    inputs.append((drawn(5, 4, seed=1), drawn(5, 4, seed=2)) if isinstance(cell, nn.LSTMCell) else drawn(5, 4, seed=1))
    expected = told(cell, *inputs)
    with Unrolled():
        found = told(cell, *inputs)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_stack_of_layers_has_the_gradients_of_each(kind):
    modules = [fresh(kind(3, 4), seed) for seed in range(3)]
    weights, _ = stack_module_state(modules)
    x = drawn(3, 5, 2, 3)

    def slope(weights, x):
        return grad(lambda weights: functional_call(modules[0], weights, (x,))[0].square().sum())(weights)

    with Unrolled():
        found = vmap(slope)(weights, x)
    for i, module in enumerate(modules):
        module(x[i])[0].square().sum().backward()
        for name, p in module.named_parameters():
            assert torch.allclose(found[name][i], p.grad, rtol=0, atol=1e-12)


class Recurrent(nn.Module):
    """The last output of a recurrent layer, through a linear one."""

    def __init__(self, kind=nn.LSTM, **more):
        super().__init__()
        self.layer, self.head = kind(3, 4, batch_first=True, **more), nn.Linear(4, 3)

    def features(self, inputs):
        return self.layer(inputs)[0][:, -1]

    def forward(self, inputs):
        return self.head(self.features(inputs))


def trained(method, model, backend, **engine):
    federation = blobs([4, 3, 5, 2, 4, 4, 3], shape=(5, 3), probe=1, proxy=8)
    local = Local(batch=2, optimizer=sgd(0.1, momentum=0.5))
    return Simulation(method, federation, model, local=local, engine=double(backend=backend, **engine))


OPTIONS = {"scaffold I": lambda: scaffold("I"), "fedbac validation": lambda: fedbac(reliability="validation")}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, nn.LSTM) for name in (*differing_on_clients(["fedavg", *ALL_METHODS]), *OPTIONS)),
        *((name, nn.GRU) for name in ("fedavg", "scaffold", "feda4", "moon")),
    ],
)
def test_both_backends_train_recurrent_models_alike_under_every_method(name, kind):
    method = OPTIONS[name]() if name in OPTIONS else METHODS.make(name)
    one, other = (run(trained(method, fresh(Recurrent(kind)), backend), 2) for backend in BACKENDS)
    assert_close(one, other, one - flat(fresh(Recurrent(kind))), 1e-10)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_dropout_between_layers_is_keyed_by_client(kind):
    """So it does not depend on who trains beside whom, or on torch's generator."""
    model = fresh(Recurrent(kind, num_layers=3, dropout=0.5))
    plain = run(trained(fedavg(), fresh(Recurrent(kind, num_layers=3)), "per-client"), 2)
    ends = []
    for engine in ({"backend": "batched"}, {"backend": "batched", "chunk": 2}, {"backend": "per-client", "threads": 2}):
        torch.manual_seed(len(ends))
        simulation = trained(fedavg(), model, **engine)
        assert (simulation.trainer.traits.keyed, simulation.trainer.traits.unkeyed) == (True, False)
        ends.append(run(simulation, 2))
        assert_close(ends[0], ends[-1], ends[0] - flat(model), 1e-10)
    assert (ends[0] - plain).norm() > 1e-2 * (plain - flat(model)).norm()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_weights_of_a_stack_are_not_moved_together(backend, monkeypatch):
    """As torch does for cuDNN on a GPU: those of a stack lie nowhere."""

    def moved(layer):
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")

    simulation = trained(fedavg(), fresh(Recurrent()), backend)
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", moved)
    if backend == "batched":
        simulation.backend.outputs(simulation.trainer.start.expand(2, -1), drawn(2, 5, 3))
    else:  # one client's do
        with pytest.raises(CounterpoiseError, match="RuntimeError: Cannot access data pointer"):
            run(simulation, 1)


# ---------------------------------------------------------------- what cannot be stacked


class Looking(Recurrent):
    """It looks at a number in one of its methods, or in evaluation alone."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def features(self, inputs):
        outputs = super().features(inputs)
        return outputs if self.where != "features" or outputs.sum() > 0 else 2 * outputs

    def forward(self, inputs):
        outputs = self.head(super().features(inputs))
        return outputs if self.where != "evaluation" or self.training or outputs.sum() > 0 else 2 * outputs


def looking(hook):
    """A part that looks at a number in one of its hooks."""
    if hook == "gradient":
        turned = lambda client, step, g: g * float(step.curvature(g).sum() > 0)  # noqa: E731
        return Part("looking", second_order=True, gradient=turned)

    def look(client, step):
        return {"n": client.memo["n"] + float(step.gradient_at(client.start).sum())}

    return Part("looking", begin=lambda client: {"n": client.start.new_zeros(())}, **{hook: look})


REFUSED = {
    "probe": (feda4, "evaluation"),
    "representation": (moon, "features"),
    **{
        hook: (lambda hook=hook: fedavg().adding(local=looking(hook)), "")
        for hook in ("survey", "after_step", "gradient")
    },
}


@pytest.mark.parametrize("phase", REFUSED)
def test_what_cannot_be_stacked_is_told_before_the_first_round(phase):
    make, where = REFUSED[phase]
    with pytest.raises(CounterpoiseError, match=r"cannot be trained as one batch of clients .*backend='per-client'"):
        trained(make(), fresh(Looking(where)), "batched")
    for backend in ("per-client", "auto"):
        assert bool(run(trained(make(), fresh(Looking(where)), backend), 1).isfinite().all())


def test_a_packed_sequence_is_left_to_torch_and_refused_in_a_stack():
    class Packed(Recurrent):
        def features(self, inputs):
            lengths = torch.full((len(inputs),), inputs.shape[1])
            packed = nn.utils.rnn.pack_padded_sequence(inputs, lengths, batch_first=True)
            return self.layer(packed)[1][0][-1]

    one, other = (run(trained(fedavg(), fresh(model()), "per-client"), 1) for model in (Packed, Recurrent))
    assert torch.allclose(one, other, rtol=0, atol=1e-12)
    with pytest.raises(CounterpoiseError, match="cannot be trained as one batch of clients"):
        trained(fedavg(), fresh(Packed()), "batched")


def test_an_open_choice_goes_to_the_other_backend_with_a_word(caplog):
    """As a GPU would make it."""
    with caplog.at_level(logging.WARNING):
        assert _as_one_batch(Engine(), "no rule for x").backend == "per-client"
    assert "Clients train one by one" in caplog.text
    assert "no rule for x" in caplog.text
    assert _as_one_batch(Engine(), "") == Engine()
    for engine in (Engine(backend="batched"), Engine(bf16=True)):
        with pytest.raises(CounterpoiseError, match=r"cannot be trained as one batch of clients \(no rule for x\)"):
            _as_one_batch(engine, "no rule for x")


def test_a_mistake_that_is_no_matter_of_stacks_is_told_as_it_is():
    part = Part("wrong", gradient=lambda client, step, g: g + torch.zeros(7))
    for backend in BACKENDS:
        with pytest.raises(CounterpoiseError, match=r"<lambda> in test_recurrent.py.* The size of tensor"):
            run(trained(fedavg().adding(local=part), fresh(Recurrent()), backend), 1)
