"""Outputs of models, captured with graphs that play on a CPU."""

import pytest
import torch
from helpers import small
from played import Played

from counterpoise.engine.backends import forward
from counterpoise.engine.backends.forward import Forward
from counterpoise.engine.clients.network import Network
from counterpoise.errors import CounterpoiseError
from counterpoise.flat import Layout


@pytest.fixture
def made(monkeypatch):
    found = []

    class Counted(Played):
        def __init__(self, *given, **how):
            found.append(self)
            super().__init__(*given, **how)

    monkeypatch.setattr(forward, "CapturedGraph", Counted)
    return found


def network():
    module = small().double()
    return Network(module, Layout.of(module), True, train=False, stacked=True)


def by_hand(network, models, inputs, shared):
    return torch.stack([network(model, inputs if shared else inputs[row]) for row, model in enumerate(models)])


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("captures", [True, False])
def test_every_call_gives_the_outputs_of_its_own_models_and_inputs(shared, captures, made, monkeypatch):
    monkeypatch.setattr(forward, "_SAMPLES", 8)  # two models of four samples at once, so three calls of 2, 2 and 1
    its = network()
    outputs = Forward(its)
    kept = []
    for seed in range(5):
        torch.manual_seed(seed)
        models = torch.randn(5, its.layout.size, dtype=torch.float64)
        inputs = torch.randn(*(() if shared else (5,)), 4, 6, dtype=torch.float64)
        kept.append((outputs(models, inputs, shared=shared, captures=captures), by_hand(its, models, inputs, shared)))
    for found, wanted in kept:  # nothing was overwritten by a later call
        assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-14)
    assert len(made) == (2 if captures else 0)


def test_few_are_kept_and_rare_forms_are_not_captured(made):
    its = network()
    outputs = Forward(its)
    for count in range(1, 12):
        for _ in range(3 if count < 11 else 2):
            outputs(
                torch.randn(count, its.layout.size).double(), torch.randn(2, 6).double(), shared=True, captures=True
            )
    assert len(made) == 10
    assert len(outputs._captured) == 8


def test_one_model_alone_is_captured_too(made):
    its = network()
    outputs = Forward(its)
    kept = []
    for seed in range(5):
        torch.manual_seed(seed)
        model, inputs = torch.randn(its.layout.size).double(), torch.randn(4, 6).double()
        kept.append((outputs.alone(model, inputs, captures=True), its(model, inputs)))
    for found, wanted in kept:
        assert torch.equal(found, wanted)
    assert len(made) == 1


def test_a_cycle_of_many_forms_is_not_captured_anew_each_time(made):
    its = network()
    outputs = Forward(its)
    model = torch.randn(its.layout.size).double()
    for _ in range(6):
        for count in range(1, 12):
            outputs.alone(model, torch.randn(count, 6).double(), captures=True)
    assert len(made) == 8


def test_a_form_that_is_no_longer_met_makes_room_for_new_ones(made):
    its = network()
    outputs = Forward(its)
    model = torch.randn(its.layout.size).double()
    for forms in (range(1, 9), range(11, 13)):
        for _ in range(5):
            for count in forms:
                outputs.alone(model, torch.randn(count, 6).double(), captures=True)
    assert len(made) == 10
    assert len(outputs._captured) == 8


@pytest.mark.parametrize("error", [CounterpoiseError("it waits for the GPU"), MemoryError("out of memory")])
def test_what_cannot_be_captured_is_computed_plainly(error, monkeypatch):
    tried = []

    def fail(*given, **how):
        tried.append(given)
        raise error

    monkeypatch.setattr(forward, "CapturedGraph", fail)
    its = network()
    outputs = Forward(its)
    model, inputs = torch.randn(its.layout.size).double(), torch.randn(4, 6).double()
    for _ in range(6):
        assert torch.equal(outputs.alone(model, inputs, captures=True), its(model, inputs))
    assert len(tried) == 1
