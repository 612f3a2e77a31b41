"""Bring DataLoaders. Of a loader only its data set counts; `cp.Local` says how clients make batches.

To run it: python examples/bring_loaders.py
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

import counterpoise as cp


def loader(seed: int, samples: int) -> DataLoader:
    x = torch.randn(samples, 2, generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=16, shuffle=True)


def main(rounds: int = 20) -> cp.Run:
    clients = {"tokyo": loader(1, 400), "lima": loader(2, 80)}
    federation = cp.Federation.from_datasets(clients, test=loader(3, 300))
    return cp.simulate("fedavg", federation, model=cp.models.linear, rounds=rounds, local=cp.Local(batch=16))


if __name__ == "__main__":
    print(main())
