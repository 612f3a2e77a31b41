"""Bring torch data sets: one for each client, or one that is dealt to clients by a partition.

To run it: python examples/bring_datasets.py
"""

import torch
from torch.utils.data import TensorDataset, random_split

import counterpoise as cp


def main(rounds: int = 20) -> list[cp.Run]:
    x = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0))
    points = TensorDataset(x, (x.sum(1) > 0).long())  # any map-style data set of pairs (input, target) will do
    train, test = random_split(points, [800, 200])
    unequal = cp.Federation.from_datasets(random_split(train, [600, 150, 50]), test=test)
    dealt = cp.Federation.from_datasets(train, partition=cp.dirichlet(0.5, clients=8), test=test)
    return [cp.simulate("fedavg", fed, model=cp.models.linear, rounds=rounds) for fed in (unequal, dealt)]


if __name__ == "__main__":
    for run in main():
        print(run)
