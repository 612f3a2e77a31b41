"""Bring samples that are dictionaries: a model is given a picture and facts as keywords.

To run it: python examples/bring_parts.py
"""

import torch
from torch.utils.data import StackDataset

import counterpoise as cp

pictures, facts = torch.rand(400, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(400) % 2.0
labels = (pictures.mean((1, 2, 3)) + facts > 1).long()
samples = StackDataset(picture=pictures, facts=facts[:, None], label=labels)


class Model(torch.nn.Linear):
    def forward(self, picture: torch.Tensor, facts: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.cat([picture.flatten(1), facts], 1))


columns = {"inputs": ["picture", "facts"], "targets": "label"}
federation = cp.Federation.from_datasets(samples, partition=cp.iid(clients=4), test=samples, columns=columns)
run = cp.simulate("fedavg", federation, model=Model(17, 2), rounds=20, local=cp.Local(optimizer=cp.sgd(0.5)))
print(f"{federation}\naccuracy: {run.accuracy:.1%}")
