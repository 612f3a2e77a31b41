"""Dropout and other draws inside a model: functions of the client's key, the call and the place."""

import numpy as np
import pytest
import torch
from helpers import BACKENDS, Spy, double, net
from torch import nn
from torch.nn import functional as F

from counterpoise.engine import Simulation
from counterpoise.engine.clients.keyed import Keyed
from counterpoise.federation import Federation
from counterpoise.local import Local, sgd
from counterpoise.methods import avg
from counterpoise.randomness import counter

CALLS = {
    "nn.Dropout": nn.Dropout(0.3),
    "nn.Dropout2d": nn.Dropout2d(0.3),
    "F.dropout": lambda x: F.dropout(x, 0.3),
    "torch.dropout": lambda x: torch.dropout(x, 0.3, True),
    "F.dropout1d": lambda x: F.dropout1d(x.flatten(2), 0.3).view_as(x),
    "F.dropout3d": lambda x: F.dropout3d(x[:, :, None], 0.3)[:, :, 0],
    "torch.rand": lambda x: torch.rand(*x.shape),
    "torch.rand, a size": lambda x: torch.rand(x.shape, dtype=torch.float64),
    "torch.randn": lambda x: torch.randn(size=x.shape),
    "torch.rand_like": torch.rand_like,
    "torch.randn_like": torch.randn_like,
    "torch.bernoulli": lambda x: torch.bernoulli(0.5 * x),
    "Tensor.bernoulli": lambda x: x.bernoulli(0.5),
}


def ones():
    return torch.ones(6, 50, 4, 4, dtype=torch.float64)


def drawn(call, key=3, times=1, x=None):
    with Keyed(counter(key)):
        return [CALLS[call](ones() if x is None else x) for _ in range(times)]


@pytest.mark.parametrize("call", CALLS)
def test_a_draw_follows_from_the_key_and_the_number_of_the_call(call):
    before = torch.get_rng_state()
    first, second = drawn(call, times=2)
    again = drawn(call, times=2)
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])
    assert not torch.equal(first, second)
    assert not torch.equal(first, drawn(call, key=4)[0])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("call", CALLS)
def test_a_sample_does_not_depend_on_how_many_follow_it(call):
    assert torch.equal(drawn(call, x=ones()[:2])[0], drawn(call)[0][:2])


@pytest.mark.parametrize("call", [name for name in CALLS if "ropout" in name])
def test_dropout_drops_as_many_as_it_says_and_scales_the_rest(call):
    values = drawn(call)[0]
    assert values.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    channels = values[:, :, 0, 0] if "out1d" in call or "out2d" in call or "out3d" in call else values
    share = float((channels == 0).double().mean())
    assert share == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / channels.numel()))


@pytest.mark.parametrize("call", ["nn.Dropout2d", "F.dropout1d", "F.dropout3d"])
def test_feature_dropout_drops_whole_channels_each_on_its_own(call):
    values = drawn(call)[0].flatten(2)
    assert bool((values == values[:, :, :1]).all())
    kept = values[:, :, 0] > 0
    assert bool(kept.any(1).all())
    assert not bool(kept.all(1).any())
    assert len({tuple(row) for row in kept.tolist()}) == 6  # and samples differ


def test_plain_dropout_drops_single_numbers():
    values = drawn("nn.Dropout")[0].flatten(2)
    assert not bool((values == values[:, :, :1]).all())


@pytest.mark.parametrize("layer", [nn.Dropout, nn.Dropout2d])
def test_the_extremes_of_dropout(layer):
    with Keyed(counter(1)) as mode:
        assert torch.equal(layer(0.0)(ones()), ones())
        assert torch.equal(layer(0.5).eval()(ones()), ones())
        assert mode.calls == 0
        assert torch.equal(layer(1.0)(ones()), 0 * ones())


def test_types_are_those_asked_for():
    with Keyed(counter(1)):
        assert torch.rand(3).dtype == torch.float32
        assert torch.randn(3, dtype=torch.float64).dtype == torch.float64
        assert torch.randn_like(torch.zeros(3, dtype=torch.float64)).dtype == torch.float64
        assert torch.rand(()).shape == ()


@pytest.mark.parametrize("backend", BACKENDS)
def test_clients_steps_and_rounds_drop_different_things(backend):
    """Two clients with the same samples, and a server that never moves."""
    spy, still = Spy(), 1e-300
    samples = (np.ones((4, 6)), np.arange(4) % 3)
    simulation = Simulation(
        avg(lr=still),
        Federation.from_clients([samples, samples], heldout=0),
        net(nn.Linear(6, 40), nn.Dropout(0.5), nn.Linear(40, 3)),
        local=Local(batch=4, optimizer=sgd(0.1)),
        adversary=spy,
        engine=double(backend=backend),
    )
    simulation.advance()
    simulation.advance()
    updates = torch.cat([cohort.updates for cohort in spy.cohorts])
    assert torch.pdist(updates).min() > 0.01 * updates.norm(dim=1).max()
