"""Which clients train in one chunk: those whose numbers of steps are near each other.

A chunk takes as many steps as its longest client, so unequal clients waste work; but every chunk
also has costs of its own, which weigh as much as many clients, on a CPU if they are small (`overhead`). The cut with the least of
both is found exactly, over the distinct numbers of steps in the cohort. What is recorded is for one number
of clients, so there chunks come in few sizes (`room`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["buckets", "overhead", "pays", "room"]


def overhead(device: str, parameters: int, batch: int) -> float:
    """What a step of a chunk costs beside its clients, in clients.

    On two ARM cores a step of perceptrons took as long as 3.7 steps of a client alone, and for each client
    ``sqrt(parameters x batch) / 3500`` of one (650 to 400,000 parameters). On an H200 rounds of unequal clients were within
    5 % of the fastest among overheads from 2 to 600 with the one below (650, 61,706, 79,510 and 1,626,442 parameters).
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

    Cohorts of 100 unequal clients then took three or four sizes, and by the sum below 3 to 13 % more than the best cut.

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

    def weight(clients: int) -> float:
        whole, rest = divmod(clients, most)
        return whole * (most + overhead) + (size(rest, most) + overhead if rest else 0)

    order = steps.argsort(stable=True)
    lengths, counts = (t.tolist() for t in torch.unique_consecutive(steps[order], return_counts=True))
    ends = torch.tensor([0, *counts]).cumsum(0).tolist()
    best = [0.0]  # least cost of the clients with the first k lengths, and where their last chunk begins
    begins = [0]
    for k in range(1, len(lengths) + 1):
        costs = [best[j] + lengths[k - 1] * weight(ends[k] - ends[j]) for j in range(k)]
        begins.append(min(range(k), key=costs.__getitem__))
        best.append(costs[begins[-1]])
    cuts, k = [], len(lengths)
    while k:
        cuts.append((ends[begins[k]], ends[k]))
        k = begins[k]
    return [piece for low, high in reversed(cuts) for piece in torch.split(order[low:high], most)]
