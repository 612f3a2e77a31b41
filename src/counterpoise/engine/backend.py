"""What a backend does, whichever it is: train a cohort, and give the outputs of a stack of models."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from counterpoise.engine.batches import augment_keys, plan
from counterpoise.engine.client import Batch, Named, Sent, Shared, Stake
from counterpoise.engine.trees import select
from counterpoise.federation.samples import Samples
from counterpoise.local import Local

__all__ = ["Backend", "Batches", "Job", "gather"]


class Job(NamedTuple):
    """The local training of a cohort in one round. Every client has at least one sample."""

    shared: Shared
    samples: Samples
    rows: Tensor
    """``[C, width]`` each client's samples, padded; on the samples' device."""
    sizes: Tensor
    """``[C]`` on the CPU."""
    steps: Tensor
    """``[C]`` steps per pass, on the CPU."""
    clients: Tensor
    """``[C]`` the clients' numbers, on the samples' device."""
    keys: Tensor
    """``[C]`` the clients' keys for this round, on the samples' device."""
    state: Named
    """What each client kept, stacked."""

    def some(self, places: Tensor) -> Job:
        """The part of the cohort at these places."""
        there = places.to(self.rows.device)
        sizes = self.sizes[places]
        return Job(
            self.shared,
            self.samples,
            self.rows[there][:, : int(sizes.max())],
            sizes,
            self.steps[places],
            self.clients[there],
            self.keys[there],
            select(self.state, there),
        )

    def once(self, local: Local) -> Job:
        """The same work with steps for one pass over the data."""
        return self._replace(steps=(self.sizes + local.batch - 1) // local.batch)

    def stakes(self, local: Local) -> Stake:
        device = self.rows.device
        total = (self.steps * local.passes).to(device, non_blocking=True)
        return Stake(self.clients, self.sizes.to(device, non_blocking=True), total, self.keys, self.state)


class Backend(Protocol):
    """Both backends; `halt` stops them between steps."""

    halt: threading.Event

    def train(self, job: Job) -> Sent:
        """Every client's reply, stacked in the job's order."""

    def outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        """The outputs of models ``[M, D]`` in evaluation mode on the same inputs."""

    def own_outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        """The outputs of models ``[M, D]`` in evaluation mode, each on inputs of its own ``[M, B, ...]``."""

    def output(self, model: Tensor, inputs: Tensor) -> Tensor:
        """The output of one model in evaluation mode."""


class Batches:
    """One pass of a stack of clients, batch by batch."""

    def __init__(self, job: Job, local: Local, epoch: int, dtype: torch.dtype) -> None:
        self.job, self.local, self.dtype = job, local, dtype
        self.plan = plan(job.keys, job.sizes, job.steps, local.batch, epoch)
        self.rows = job.rows.gather(1, self.plan.places.flatten(1)).view(self.plan.places.shape)
        real = self.plan.real.to(dtype)
        self.share = real / real.sum(2, keepdim=True).clamp(min=1)
        self.augment = augment_keys(job.keys, self.plan, epoch) if local.augment else None

    def __len__(self) -> int:
        return int(self.rows.shape[1])

    @cached_property
    def counts(self) -> list[list[int]]:
        """How many samples each client has at each of its steps."""
        counts = self.plan.real.sum(2).tolist()
        return [own[:steps] for own, steps in zip(counts, self.job.steps.tolist(), strict=True)]

    def one(self, row: int, step: int, count: int) -> Batch:
        """The batch ``[B]`` of one client at a step, without padding."""
        some = slice(0, count)
        augment = None if self.augment is None else self.augment[row, step, some]
        key = self.plan.model_keys[row, step]
        return gather(
            self.job.samples,
            self.local,
            self.dtype,
            self.rows[row, step, some],
            self.share[row, step, some],
            key,
            augment,
        )

    def pick(self, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """What `gather` turns into the batches ``[C, B]`` of a step."""
        keys = None if self.augment is None else self.augment[:, step]
        return self.rows[:, step], self.share[:, step], self.plan.model_keys[:, step], keys


def gather(
    samples: Samples, local: Local, dtype: torch.dtype, rows: Tensor, share: Tensor, key: Tensor, augment: Tensor | None
) -> Batch:
    """Gather, scale and augment one batch ``[B]`` or a stack of them ``[C, B]``."""
    inputs, targets = samples.take(rows, dtype)
    if local.augment is not None and augment is not None:
        inputs = local.augment(inputs.flatten(0, rows.ndim - 1), augment.flatten()).reshape(inputs.shape)
    return Batch(inputs, targets, share, key)
