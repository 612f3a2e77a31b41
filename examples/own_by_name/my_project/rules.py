"""A model, a method, a loss and data of one's own, for mine.toml beside this package."""

from typing import Annotated

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import counterpoise as cp
from counterpoise.registry import Option


class Net(nn.Module):
    """One hidden layer."""

    def __init__(self, shape: tuple[int, ...], classes: int, hidden: int = 32) -> None:
        super().__init__()
        inputs = torch.Size(shape).numel()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


def gentle(mu: Annotated[float, Option("strength of the pull to the server's model", low=0)] = 0.1) -> cp.Method:
    """FedProx with a default of our own."""
    return cp.methods.fedprox(mu=mu)


def focal(outputs: Tensor, targets: Tensor, gamma: float = 2.0) -> Tensor:
    """Cross-entropy that counts samples less if the model is already sure of them."""
    chance = outputs.log_softmax(1).gather(1, targets[:, None])[:, 0]
    return -((1 - chance.exp()) ** gamma) * chance


def digits(partition: cp.Partition, seed: int, brightness: float = 1.0) -> cp.Federation:
    """scikit-learn's digits, brighter or darker."""
    x, y = load_digits(return_X_y=True)
    inputs = torch.tensor(x / 16 * brightness, dtype=torch.float32).reshape(-1, 1, 8, 8)
    targets = torch.tensor(y)
    test = (inputs[:400], targets[:400])
    return cp.Federation.from_arrays(inputs[400:], targets[400:], partition=partition, test=test, seed=seed)
