"""Which samples a client sees at which step: a function of its key alone.

A pass goes through a client's data in random order, batch by batch; its last batch may be partial. A client
has the same plan whether it is planned alone or in a padded stack.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from counterpoise.randomness import Array, counted, counter, orders, purpose

__all__ = ["Plan", "augment_keys", "client_keys", "count_seen", "plan"]

_BATCHES, _MODEL, _AUGMENT = purpose("batches"), purpose("model"), purpose("augment")


class Plan(NamedTuple):
    """One pass of a stack of clients, on the keys' device."""

    places: Tensor
    """``[C, S, B]`` positions in each client's own data; 0 if there is no sample."""
    real: Tensor
    """``[C, S, B]`` whether there is a sample."""
    lap: Tensor
    """``[C, S]`` how often the client has already been through its data within the pass."""
    model_keys: Tensor
    """``[C, S]`` the key for the model's randomness at each step."""


def client_keys(seed: int, round: int, clients: Tensor) -> Tensor:
    """One key ``[C]`` for each client in this round; all of the client's randomness in the round follows from it."""
    return torch.from_numpy(counted(seed, purpose("client"), round, clients.numpy()))


def plan(keys: Tensor, sizes: Tensor, steps: Tensor, batch: int, epoch: int | Tensor) -> Plan:
    """The batches of one pass of ``steps[i]`` steps over ``sizes[i] >= 1`` samples.

    A pass longer than the data goes through it again in a new order. `sizes` and `steps` lie on the
    CPU, so that nothing here waits for a GPU. `epoch` is one number, or one per row.
    """
    epochs = torch.as_tensor(epoch, device=keys.device).expand(len(keys))
    counts = sizes.numpy(), steps.numpy()
    if keys.is_cuda:
        place = partial(_to_device, device=keys.device)
        return Plan(*_plan(torch, counter, place, keys, epochs, *counts, batch))
    planned = _plan(np, counted, np.asarray, keys.numpy(), epochs.numpy(), *counts, batch)
    return Plan(*(torch.from_numpy(array) for array in planned))


def _to_device(array: Array, device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)


def _plan(
    xp: Any,
    counter: Callable[..., Any],
    placed: Callable[[Array], Any],
    keys: Any,
    epochs: Any,
    sizes: Any,
    steps: Any,
    batch: int,
) -> tuple[Any, ...]:
    """`plan` in torch for a GPU, or in NumPy for a CPU, where many operations on small arrays are faster that way."""
    per_lap = (sizes + batch - 1) // batch
    laps = (steps - 1) // per_lap + 1
    owner = np.repeat(np.arange(len(sizes)), laps)  # one order for each client and lap
    first = laps.cumsum() - laps
    lap_of_order = np.arange(len(owner)) - first[owner]
    width, step, within = int(sizes.max()), np.arange(int(steps.max())), np.arange(batch)
    host = (sizes, steps, per_lap, laps, owner, first, lap_of_order, step, within)
    sizes, steps, per_lap, laps, owner, first, lap_of_order, step, within = map(placed, host)
    order = orders(counter(keys[owner], _BATCHES, epochs[owner], lap_of_order), sizes[owner], width)
    lap = xp.minimum(step[None, :] // per_lap[:, None], laps[:, None] - 1)
    place = (step[None, :] % per_lap[:, None])[:, :, None] * batch + within
    real = (place < sizes[:, None, None]) & (step[None, :] < steps[:, None])[:, :, None]
    position = (first[:, None] + lap)[:, :, None] * width + place.clip(max=width - 1)
    places = xp.where(real, order.reshape(-1)[position], 0)
    return places, real, lap, counter(keys[:, None], _MODEL, epochs[:, None], step[None, :])


def count_seen(sizes: Tensor, steps: Tensor, batch: int) -> Tensor:
    """How many samples each client sees in a pass of its steps, counting repetitions."""
    per_lap = ((sizes + batch - 1) // batch).clamp(min=1)
    return steps // per_lap * sizes + steps % per_lap * batch


def augment_keys(keys: Tensor, batches: Plan, epochs: Tensor) -> Tensor:
    """``[C, S, B]`` one key per sample seen, for its augmentation."""
    return counter(keys[:, None, None], _AUGMENT, epochs[:, None, None], batches.lap[:, :, None], batches.places)
