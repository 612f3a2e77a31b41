"""Which clients train in one chunk: those with similar numbers of steps.

A chunk takes as many steps as its longest client, so unequal clients waste work. But every chunk also has a
fixed cost, which can be as high as that of many clients (`overhead`). The cut with the lowest total cost is found exactly, over the distinct numbers of steps in the cohort. A CUDA graph fixes the
number of clients, so captured chunks come in few sizes (`room`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

__all__ = ["buckets", "overhead", "pays", "room"]


def overhead(device: str, parameters: int, batch: int) -> float:
    """The fixed cost of a chunk's step, as the number of clients in the chunk that would cost as much.

    On two ARM cores, a step of a chunk of perceptrons took as long as 3.7 steps of a client alone, plus
    ``sqrt(parameters x batch) / 3500`` of such a step for each client (650 to 400,000 parameters). On an H200, rounds
    of unequal clients with the overhead below were within 6 % of the fastest among overheads from 2 to 600
    (650, 61,706, 79,510 and 1,626,442 parameters).
    """
    return (25_000 if device == "cuda" else 13_000) / math.sqrt(parameters * batch)


def pays(steps: Tensor, most: int, parameters: int, batch: int) -> bool:
    """Whether, by these counts, a CPU trains a cohort in chunks in under 0.8 of the time that it takes one by one.

    A chunk holds at most `most` clients.
    """
    fixed_cost = overhead("cpu", parameters, batch)
    chunks = buckets(steps, most, fixed_cost)
    took = 3.7 * sum((1 + len(chunk) / fixed_cost) * int(steps[chunk].max()) for chunk in chunks)
    return took < 0.8 * int(steps.sum())


def room(clients: int, most: int) -> int:
    """The number of clients that a chunk is padded to for a capture: `most`, a quarter of it, a quarter of that, ...

    It is never below 2. Cohorts of 100 unequal clients then used three or four sizes, and the sum that `buckets`
    minimises was 5 to 21 % above that of the best cut.

    >>> [room(clients, most=100) for clients in (100, 26, 25, 9, 1)]
    [100, 100, 25, 25, 2]
    """
    while (quarter := -(-most // 4)) >= max(clients, 2):
        most = quarter
    return most


def buckets(
    steps: Tensor, most: int, overhead: float, size: Callable[[int, int], int] = lambda clients, most: clients
) -> list[Tensor]:
    """The places of a cohort, cut into chunks of at most `most` clients each.

    Minimises the sum over chunks of ``(size(clients, most) + overhead) x longest``.

    >>> [chunk.tolist() for chunk in buckets(torch.tensor([9, 1, 9, 1]), most=4, overhead=1.0)]
    [[1, 3], [0, 2]]
    >>> [chunk.tolist() for chunk in buckets(torch.tensor([9, 1, 9, 1]), most=4, overhead=50.0)]
    [[1, 3, 0, 2]]
    """

    order = steps.argsort(stable=True)
    lengths, counts = (t.numpy() for t in torch.unique_consecutive(steps[order], return_counts=True))
    ends = np.concatenate(([0], counts.cumsum()))
    # Indexed by how many clients are left over after whole chunks.
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
    return [chunk for low, high in reversed(cuts) for chunk in torch.split(order[low:high], most)]
