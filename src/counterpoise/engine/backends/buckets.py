"""Which clients train in one chunk: those whose numbers of steps are near each other.

A chunk takes as many steps as its longest client, so unequal clients waste work; but every chunk
also has costs of its own, which weigh as much as many clients, on a CPU if they are small (`overhead`). The cut with the least of
both is found exactly, over the distinct numbers of steps in the cohort. What is recorded is for one number
of clients, so there chunks come in few sizes (`room`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

__all__ = ["buckets", "overhead", "pays", "room"]


def overhead(device: str, parameters: int, batch: int) -> float:
    """What a step of a chunk costs beside its clients, in clients.

    On two ARM cores a step of perceptrons took as long as 3.7 steps of a client alone, and for each client
    ``sqrt(parameters x batch) / 3500`` of one (650 to 400,000 parameters). On an H200 rounds of unequal clients were within
    6 % of the fastest among overheads from 2 to 600 with the one below (650, 61,706, 79,510 and 1,626,442 parameters).
    """
    return (25_000 if device == "cuda" else 13_000) / math.sqrt(parameters * batch)


def pays(steps: Tensor, most: int, parameters: int, batch: int) -> bool:
    """Whether a CPU trains a cohort in chunks of at most `most` in less than 0.8 of the time that it takes one by one, by these counts."""
    beside = overhead("cpu", parameters, batch)
    chunks = buckets(steps, most, beside)
    took = 3.7 * sum((1 + len(chunk) / beside) * int(steps[chunk].max()) for chunk in chunks)
    return took < 0.8 * int(steps.sum())


def room(clients: int, most: int) -> int:
    """For how many clients a chunk of so many is recorded: for `most`, or the quarter of it, the quarter of that, ..., not below 2.

    Cohorts of 100 unequal clients then took three or four sizes, and by the sum below 5 to 21 % more than the best cut.

    >>> [room(clients, most=100) for clients in (100, 26, 25, 9, 1)]
    [100, 100, 25, 25, 2]
    """
    while (quarter := -(-most // 4)) >= max(clients, 2):
        most = quarter
    return most


def buckets(
    steps: Tensor, most: int, overhead: float, size: Callable[[int, int], int] = lambda clients, most: clients
) -> list[Tensor]:
    """Places of a cohort, cut into chunks of at most `most` clients each.

    Minimises the sum over chunks of ``(size(clients, most) + overhead) x longest``.

    >>> [chunk.tolist() for chunk in buckets(torch.tensor([9, 1, 9, 1]), most=4, overhead=1.0)]
    [[1, 3], [0, 2]]
    >>> [chunk.tolist() for chunk in buckets(torch.tensor([9, 1, 9, 1]), most=4, overhead=50.0)]
    [[1, 3, 0, 2]]
    """

    order = steps.argsort(stable=True)
    lengths, counts = (t.numpy() for t in torch.unique_consecutive(steps[order], return_counts=True))
    ends = np.concatenate(([0], counts.cumsum()))
    # By how many clients are left over when whole chunks are taken away.
    rest = np.array([0.0, *(size(clients, most) + overhead for clients in range(1, most))])
    best = np.zeros(len(ends))  # least cost of the clients with the first k lengths, and where their last chunk begins
    begins = np.zeros(len(ends), dtype=int)
    for k in range(1, len(ends)):
        whole, left = np.divmod(ends[k] - ends[:k], most)
        costs = best[:k] + lengths[k - 1] * (whole * (most + overhead) + rest[left])
        begins[k] = costs.argmin()
        best[k] = costs[begins[k]]
    cuts, k = [], len(lengths)
    while k:
        cuts.append((int(ends[begins[k]]), int(ends[k])))
        k = begins[k]
    return [piece for low, high in reversed(cuts) for piece in torch.split(order[low:high], most)]
