"""The layer nearest to a model's output, found by a trial and not by the order of registration."""

from __future__ import annotations

import pytest
import torch
from helpers import blobs, double
from torch import Tensor, nn

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.flat import Layout


class Odd(nn.Module):
    """Two layers, whichever is registered first, and one that nobody uses."""

    def __init__(self, order: tuple[str, ...], shape: int = 6, classes: int = 3) -> None:
        super().__init__()
        made = {"body": nn.Linear(shape, 5), "head": nn.Linear(5, classes), "unused": nn.Linear(4, 4)}
        for name in order:
            self.add_module(name, made[name])

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.get_submodule("body")(x.flatten(1)))
        return self.get_submodule("head")(hidden)


class Scaled(nn.Module):
    """Its own parameter comes after its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.tanh(self.layer(x.flatten(1)))


class Tempered(nn.Module):
    """A single number comes after its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.temperature * self.layer(x.flatten(1))


class Constant(nn.Module):
    """Nothing trainable has a path to the output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1)).detach()


def last(model: nn.Module) -> set[str]:
    simulation = Simulation(cp.methods.avg(), blobs([9] * 5), model, engine=double())
    layout = simulation.trainer.layout
    return {
        name for name, chosen in zip(layout.names, torch.split(layout.last, layout.sizes), strict=True) if chosen.all()
    }


HEAD = {"head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (Odd(("body", "head")), HEAD),
        (Odd(("body", "head", "unused")), HEAD),
        (Odd(("head", "body")), HEAD),
        (Odd(("head", "unused", "body")), HEAD),
        (Scaled(), {"scale"}),
        (Tempered(), {"layer.weight", "layer.bias"}),
        (cp.models.mlp((6,), 3, hidden=4), {"3.weight", "3.bias"}),
        (Constant(), {"layer.weight", "layer.bias"}),
    ],
    ids=["usual", "unused-last", "head-first", "unused-between", "own-parameter", "own-number", "mlp", "no-path"],
)
def test_the_last_layer_is_the_one_nearest_to_the_output(model, found) -> None:
    assert last(model) == found


def test_without_a_trial_the_last_layer_is_the_one_registered_last() -> None:
    layout = Layout(("a.weight", "b.weight", "b.bias"), ((4,), (2,), (1,)))
    assert layout.last.tolist() == [False] * 4 + [True] * 3
    assert layout.ending(None) == layout
    assert layout.ending("a.weight").last.tolist() == [True] * 4 + [False] * 3
