"""What every backend does: train a cohort, and compute the outputs of a stack of models."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from counterpoise.engine.clients.batches import augment_keys, plan
from counterpoise.engine.clients.program import Batch, Named, Participant, Shared, TrainingResult
from counterpoise.engine.devices import put, ready
from counterpoise.engine.trees import cat, on, select
from counterpoise.errors import CounterpoiseError
from counterpoise.federation.samples import Samples
from counterpoise.local import Local

__all__ = ["Backend", "BatchIndex", "BatchSequence", "Batches", "Job", "gather", "make_participants", "restore_order"]

_PLANNED_ON_CPU = 2**16
"""Up to this many samples, a GPU's batches are planned on the CPU, where each of many small operations is cheaper."""


class Job(NamedTuple):
    """The local training of a cohort in one round. Every client has at least one sample."""

    shared: Shared
    samples: Samples
    rows: Tensor
    """``[C, width]`` each client's samples, padded. This and all below except the state lie on the CPU."""
    sizes: Tensor
    """``[C]``"""
    steps: Tensor
    """``[C]`` steps per pass."""
    clients: Tensor
    """``[C]`` the clients' numbers."""
    keys: Tensor
    """``[C]`` the clients' keys for this round."""
    state: Named
    """What each client kept from earlier rounds, stacked; on the samples' device."""

    @property
    def device(self) -> torch.device:
        return self.samples.targets.device

    def some(self, places: Tensor) -> Job:
        """The job of the clients at these places."""
        if _all_in_order(places, len(self.sizes)):
            return self
        sizes = self.sizes[places]
        return Job(
            self.shared,
            self.samples,
            self.rows[places][:, : int(sizes.max())],
            sizes,
            self.steps[places],
            self.clients[places],
            self.keys[places],
            select(self.state, put(places, self.device)) if self.state else {},
        )

    @property
    def ragged(self) -> bool:
        """Whether some clients take more steps than others."""
        return int(self.steps.min()) < int(self.steps.max())

    def width(self, batch: int) -> int:
        """Batch width, capped at the largest client's size rounded up to a power of two: few shapes are captured."""
        return min(batch, 1 << (int(self.sizes.max()) - 1).bit_length())

    def once(self, batch: int) -> Job:
        """The same work with steps for one pass over the data."""
        return self._replace(steps=(self.sizes + batch - 1) // batch)

    def counts(self, local: Local) -> Tensor:
        """``[4, C]`` what `make_participants` needs, ready to be copied to the samples' device."""
        return ready(torch.stack((self.clients, self.sizes, self.steps * local.passes, self.keys)), self.device)


def make_participants(counts: Tensor, state: Named) -> Participant:
    """What each client brings to a round."""
    clients, sizes, steps, keys = counts.unbind()
    return Participant(clients, sizes, steps, keys, state)


def restore_order(chunks: Sequence[tuple[Tensor, TrainingResult]], device: torch.device) -> TrainingResult:
    """Join the results of chunks of a cohort, given with their places, in the cohort's order."""
    places = torch.cat([places for places, _ in chunks])
    results = cat([results for _, results in chunks])
    return (
        results
        if _all_in_order(places, len(places))
        else TrainingResult(*select(results, put(places.argsort(), device)))
    )


def _all_in_order(places: Tensor, count: int) -> bool:
    return len(places) == count and np.array_equal(places.numpy(), np.arange(count))


class Backend(Protocol):
    """What every backend offers; `halt` stops it between steps."""

    halt: threading.Event

    @property
    def asynchronous(self) -> bool:
        """Whether `train` returns while the device still works, so that the CPU can prepare the next round."""

    def plan(self, job: Job) -> Any:
        """Prepare what can be prepared of a job before its round begins; its `shared` and `state` are not used."""

    def train(self, job: Job, planned: Any = None) -> TrainingResult:
        """What every client ends the round with, stacked in the job's order."""

    def outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        """The outputs of models ``[M, D]`` in evaluation mode on the same inputs."""

    def own_outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        """The outputs of models ``[M, D]`` in evaluation mode, each on inputs of its own ``[M, B, ...]``."""

    def output(self, model: Tensor, inputs: Tensor) -> Tensor:
        """The output of one model in evaluation mode."""


BatchIndex = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""Rows, shares, the model's key, keys to augment: what `gather` makes a batch from."""


class Batches:
    """The passes of a stack of clients over their data, batch by batch."""

    def __init__(self, job: Job, local: Local, batch: int, passes: int, dtype: torch.dtype) -> None:
        self.job, self.local, self.dtype = job, local, dtype
        size = passes * job.rows.numel()
        self.device = job.device if size > _PLANNED_ON_CPU else torch.device("cpu")
        # NumPy repeats a small array in a fraction of torch's time.
        keys, sizes, steps = (torch.from_numpy(np.tile(t.numpy(), passes)) for t in (job.keys, job.sizes, job.steps))
        epochs = torch.from_numpy(np.repeat(np.arange(passes), len(job.keys)))
        keys, epochs = (put(t, self.device) for t in (keys, epochs))
        planned = plan(keys, sizes, steps, batch, epochs)
        shape = (passes, len(job.keys), *planned.places.shape[1:])
        # All of shape [passes, C, S, B] or [passes, C, S].
        rows = put(job.rows, self.device).expand(passes, -1, -1).gather(2, planned.places.view(*shape[:2], -1))
        self.rows, self.real, self.keys = rows.view(shape), planned.real.view(shape), planned.model_keys.view(shape[:3])
        share = self.real.to(dtype)
        self.share = share / share.sum(3, keepdim=True).clamp(min=1)
        self.augment = augment_keys(keys, planned, epochs).view(shape) if local.augment else None

    @cached_property
    def counts(self) -> list[list[list[int]]]:
        """How many samples each client has at each of its steps, pass by pass."""
        return [
            [own[:steps] for own, steps in zip(clients, self.job.steps.tolist(), strict=True)]
            for clients in self.real.sum(3).tolist()
        ]

    def at(self, row: int, epoch: int, step: int, count: int) -> BatchIndex:
        """What `gather` needs for the batch ``[B]`` of one client at a step, without padding."""
        at = (epoch, row, step)
        augment = None if self.augment is None else self.augment[at][:count]
        return self.rows[at][:count], self.share[at][:count], self.keys[at], augment

    def gather(self, index: BatchIndex) -> Batch:
        if self.device != self.job.device:  # planned on the CPU, for samples on a GPU
            index = on(self.job.device, index)
        return gather(self.job.samples, self.local, self.dtype, *index)

    def sequence(self, ragged: bool) -> BatchSequence:
        """All batches in the order of the steps, ready to be copied to the samples' device; with a mask if `ragged`."""

        def in_order(values: Tensor) -> Tensor:
            return ready(values.transpose(1, 2).flatten(0, 1).contiguous(), self.job.device)

        return BatchSequence(
            in_order(self.rows),
            in_order(self.share),
            in_order(self.keys),
            None if self.augment is None else in_order(self.augment),
            in_order(self.real[..., 0]) if ragged else None,
        )


class BatchSequence(NamedTuple):
    """The batches of a stack of clients, step by step over all passes: what `gather` needs at each step."""

    rows: Tensor
    """``[T, C, B]``"""
    share: Tensor
    """``[T, C, B]``"""
    key: Tensor
    """``[T, C]``"""
    augment: Tensor | None
    """``[T, C, B]``"""
    active: Tensor | None
    """``[T, C]`` which clients have a batch; None if all have one at every step."""

    @property
    def padded(self) -> BatchSequence:
        """The same, padded with empty steps to the next power of four, so that a captured chunk fits longer ones too."""
        more = (1 << 2 * math.ceil((len(self.rows) - 1).bit_length() / 2)) - len(self.rows)
        return BatchSequence(*(t if t is None else torch.cat((t, t.new_zeros(more, *t.shape[1:]))) for t in self))  # type: ignore[arg-type]

    def at(self, step: Tensor) -> BatchSequence:
        """The batches of one step, whose number lies on the device.

        Beyond the end it starts again, because a capture may try a step there.
        """
        place = (step % len(self.rows)).view(1)
        return BatchSequence(*(t if t is None else t.index_select(0, place).squeeze(0) for t in self))  # type: ignore[arg-type]


def gather(
    samples: Samples, local: Local, dtype: torch.dtype, rows: Tensor, share: Tensor, key: Tensor, augment: Tensor | None
) -> Batch:
    """Gather, scale and augment one batch ``[B]`` or a stack of them ``[C, B]``."""
    inputs, targets = samples.take(rows, dtype)
    if local.augment is not None and augment is not None:
        made = local.augment(inputs.flatten(0, rows.ndim - 1), augment.flatten())
        if not isinstance(made, Tensor) or made.numel() != inputs.numel():
            found = f"shape {tuple(made.shape)}" if isinstance(made, Tensor) else f"type {type(made).__name__}"
            raise CounterpoiseError(f"local: augment must return its inputs in the same shape; this is of {found}.")
        inputs = made.reshape(inputs.shape)
    return Batch(inputs, targets, share, key)
