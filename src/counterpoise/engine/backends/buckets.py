"""Which clients of a cohort train side by side, step by step.

Clients take unequal numbers of steps. On a GPU, all that fit into memory begin together, those with the most steps
first, and the chunk becomes narrower as clients end (`widths`). A CUDA graph fixes the number of clients, so there are
few widths (`room`). On a CPU, a chunk keeps its width and takes as many steps as its longest client. Every chunk also
has a fixed cost, which can be as high as that of many clients (`overhead`). The cut with the lowest total cost is found
exactly, over the distinct numbers of steps in the cohort (`buckets`).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

__all__ = ["buckets", "overhead", "pays", "room", "widths"]


def overhead(parameters: int, batch: int) -> float:
    """The fixed cost of a chunk's step on a CPU, as the number of clients in the chunk that would cost as much.

    On two ARM cores, a step of a chunk of perceptrons took as long as 3.7 steps of a client alone, plus
    ``sqrt(parameters x batch) / 3500`` of such a step for each client (650 to 400,000 parameters).
    """
    return 13_000 / math.sqrt(parameters * batch)


def pays(steps: Tensor, most: int, parameters: int, batch: int) -> bool:
    """Whether a CPU is expected to train a cohort in chunks in under 0.8 of the time that it needs one by one.

    A chunk holds at most `most` clients.
    """
    fixed_cost = overhead(parameters, batch)
    chunks = buckets(steps, most, fixed_cost)
    took = 3.7 * sum((1 + len(chunk) / fixed_cost) * int(steps[chunk].max()) for chunk in chunks)
    return took < 0.8 * int(steps.sum())


def room(clients: int, most: int, ratio: float) -> int:
    """The smallest width for this many clients out of `most`, ``most / ratio``, ``most / ratio^2``, ..., at least 2.

    >>> [room(clients, most=100, ratio=4) for clients in (100, 26, 25, 9, 1)]
    [100, 100, 25, 25, 2]
    """
    while (less := math.ceil(most / ratio)) >= max(clients, 2) and less < most:
        most = less
    return most


def widths(steps: Tensor, most: int, ratio: float) -> list[int]:
    """The width of a chunk at each of its steps, where client i takes ``steps[i]`` of them, in falling order.

    >>> widths(torch.tensor([4, 2, 2, 1]), most=4, ratio=2)
    [4, 4, 2, 2]
    """
    there = np.arange(int(steps[0]))
    active = np.searchsorted(-steps.numpy(), -there)  # how many clients have more steps than were taken
    return [room(int(count), most, ratio) for count in active]


def buckets(steps: Tensor, most: int, overhead: float) -> list[Tensor]:
    """The places of a cohort, cut into chunks of at most `most` clients each.

    Minimises the sum over chunks of ``(clients + overhead) x longest``.

    >>> [chunk.tolist() for chunk in buckets(torch.tensor([9, 1, 9, 1]), most=4, overhead=1.0)]
    [[1, 3], [0, 2]]
    >>> [chunk.tolist() for chunk in buckets(torch.tensor([9, 1, 9, 1]), most=4, overhead=50.0)]
    [[1, 3, 0, 2]]
    """

    order = steps.argsort(stable=True)
    lengths, counts = (t.numpy() for t in torch.unique_consecutive(steps[order], return_counts=True))
    ends = np.concatenate(([0], counts.cumsum()))
    best = np.zeros(len(ends))  # the least cost of the clients with the first k lengths
    begins = np.zeros(len(ends), dtype=int)  # the length at which their last chunk begins
    for k in range(1, len(ends)):
        clients = ends[k] - ends[:k]
        costs = best[:k] + lengths[k - 1] * (clients + -(-clients // most) * overhead)
        begins[k] = costs.argmin()
        best[k] = costs[begins[k]]
    cuts, k = [], len(lengths)
    while k:
        cuts.append((int(ends[begins[k]]), int(ends[k])))
        k = begins[k]
    return [chunk for low, high in reversed(cuts) for chunk in torch.split(order[low:high], most)]
