"""The works to compare: model, data, batches and optimiser, the same for every arm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import counterpoise as cp

__all__ = ["WORKS", "Data", "Work", "pfl_cnn"]


@dataclass(frozen=True)
class Data:
    """Inputs, targets, and the rows of each client."""

    inputs: Tensor
    targets: Tensor
    rows: tuple[Tensor, ...]

    def to(self, device: str) -> Data:
        return Data(self.inputs.to(device), self.targets.to(device), tuple(rows.to(device) for rows in self.rows))


@dataclass(frozen=True)
class Work:
    about: str
    shape: tuple[int, ...]
    clients: int
    cohort: int
    images: int
    batch: int
    epochs: int
    lr: float
    momentum: float = 0.0
    spread: float = 0.0  # of the logarithm of a client's number of images, whose mean is `images`

    def data(self) -> Data:
        """Random samples: how long a round takes does not depend on them."""
        generator = torch.Generator().manual_seed(0)
        sizes = torch.exp(self.spread * torch.randn(self.clients, generator=generator) - self.spread**2 / 2)
        sizes = (self.images * sizes).round().long().clamp(10, 10 * self.images)
        count = int(sizes.sum())
        inputs = torch.randn(count, *self.shape, generator=generator)
        targets = torch.randint(0, 10, (count,), generator=generator)
        return Data(inputs, targets, torch.arange(count).split(sizes.tolist()))

    def model(self, dropout: bool, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng():  # an arm's own draws go on where they were
            torch.manual_seed(seed)
            return pfl_cnn(dropout) if self.shape == (3, 32, 32) else cp.models.lenet5(self.shape)


def pfl_cnn(dropout: bool) -> nn.Module:
    """The network of pfl's CIFAR-10 benchmark: 1,626,442 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        *([nn.Dropout(0.25)] if dropout else []),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        *([nn.Dropout(0.5)] if dropout else []),
        nn.Linear(128, 10),
    )


_LENET = {"shape": (1, 28, 28), "images": 120, "batch": 20, "epochs": 3, "lr": 0.01, "momentum": 0.9}
WORKS = {
    "cifar": Work("pfl's CIFAR-10 benchmark, cohort 50", (3, 32, 32), 1000, 50, 50, 10, 1, 0.1),
    "lenet5": Work("LeNet-5, 5 clients x 120 images, batch 20, 3 epochs", clients=5, cohort=5, **_LENET),
    "lenet5-100": Work("LeNet-5, 100 clients x 120 images, batch 20, 3 epochs", clients=100, cohort=100, **_LENET),
    "unequal": Work(
        "LeNet-5, 100 of 1,000 clients x 10 to 1,200 images", clients=1000, cohort=100, spread=1.0, **_LENET
    ),
}
