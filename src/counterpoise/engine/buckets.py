"""Which clients train in one chunk: those whose numbers of steps are near each other.

A chunk takes as many steps as its longest client, so unequal clients waste work; but every chunk
also has costs of its own, which on a GPU weigh as much as many clients. The cut with the least of
both is found exactly, over the distinct numbers of steps in the cohort.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["buckets"]

OVERHEAD = {"cpu": 1.0, "cuda": 64.0}
"""What a step of a chunk costs beside its clients, in clients."""


def buckets(steps: Tensor, most: int, overhead: float) -> list[Tensor]:
    """Places of a cohort, cut into chunks of at most `most` clients each.

    Minimises the sum over chunks of ``(clients + overhead) x longest``.

    >>> [chunk.tolist() for chunk in buckets(torch.tensor([9, 1, 9, 1]), most=4, overhead=1.0)]
    [[1, 3], [0, 2]]
    >>> [chunk.tolist() for chunk in buckets(torch.tensor([9, 1, 9, 1]), most=4, overhead=50.0)]
    [[1, 3, 0, 2]]
    """
    order = steps.argsort(stable=True)
    lengths, counts = (t.tolist() for t in torch.unique_consecutive(steps[order], return_counts=True))
    ends = torch.tensor([0, *counts]).cumsum(0).tolist()
    best = [0.0]  # least cost of the clients with the first k lengths, and where their last chunk begins
    begins = [0]
    for k in range(1, len(lengths) + 1):
        costs = [best[j] + _cost(ends[k] - ends[j], lengths[k - 1], most, overhead) for j in range(k)]
        begins.append(min(range(k), key=costs.__getitem__))
        best.append(costs[begins[-1]])
    cuts, k = [], len(lengths)
    while k:
        cuts.append((ends[begins[k]], ends[k]))
        k = begins[k]
    return [piece for low, high in reversed(cuts) for piece in torch.split(order[low:high], most)]


def _cost(clients: int, longest: int, most: int, overhead: float) -> float:
    chunks = -(-clients // most)
    return (clients + overhead * chunks) * longest
