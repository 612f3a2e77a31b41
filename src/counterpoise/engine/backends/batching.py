"""Plan a cohort's batches in the order of its steps, and gather one step's batch from the samples."""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from counterpoise.engine.backends.interface import Job
from counterpoise.engine.backends.refusals import explained
from counterpoise.engine.clients.batches import augment_keys, plan
from counterpoise.engine.clients.program import Batch
from counterpoise.engine.devices import put, ready
from counterpoise.errors import CounterpoiseError
from counterpoise.federation.federation import Federation
from counterpoise.federation.samples import Samples
from counterpoise.local import Local
from counterpoise.trees import on

__all__ = ["BatchIndex", "BatchSequence", "Batches", "cropped", "gather"]

_PLANNED_ON_CPU = 2**16
"""Up to this many samples, a GPU's batches are planned on the CPU, where each of many small operations is cheaper."""


class BatchIndex(NamedTuple):
    """One step's batch before its samples are read: of one client, or (with a first dimension C) of a stack of them."""

    rows: Tensor
    """``[B]`` or ``[C, B]`` places in the arrays of samples."""
    share: Tensor
    """``[B]`` or ``[C, B]`` how much each sample counts in the batch's mean; 0 for padding."""
    key: Tensor
    """``[]`` or ``[C]`` for the model's randomness."""
    augment: Tensor | None
    """``[B]`` or ``[C, B]`` a key for each sample's augmentation; None without one."""
    active: Tensor | None = None
    """``[C]`` which clients of a stack have a batch at this step; None if all do."""


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
        """The batch ``[B]`` of one client at a step, without padding."""
        at = (epoch, row, step)
        augment = None if self.augment is None else self.augment[at][:count]
        return BatchIndex(self.rows[at][:count], self.share[at][:count], self.keys[at], augment)

    def gather(self, index: BatchIndex) -> Batch:
        if self.device != self.job.device:  # planned on the CPU, for samples on a GPU
            index = on(self.job.device, index)
        return gather(self.job.samples, self.local, self.dtype, index)

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
    """The batches of a stack of clients over all passes: a `BatchIndex` for each of T steps, stacked."""

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

    def padded(self, least: int) -> BatchSequence:
        """The same with empty steps at its end: at least `least` steps in all, or the next power of four.

        A captured chunk then fits longer sequences too.
        """
        steps = len(self.rows)
        more = (least if steps <= least else 1 << 2 * math.ceil((steps - 1).bit_length() / 2)) - steps
        return BatchSequence(*(t if t is None else torch.cat((t, t.new_zeros(more, *t.shape[1:]))) for t in self))  # type: ignore[arg-type]

    def at(self, step: Tensor) -> BatchIndex:
        """The batches of one step, whose number lies on the device.

        Beyond the end it starts again, because a capture may try a step there.
        """
        place = (step % len(self.rows)).view(1)
        return BatchIndex(*(t if t is None else t.index_select(0, place).squeeze(0) for t in self))  # type: ignore[arg-type]


def gather(samples: Samples, local: Local, dtype: torch.dtype, index: BatchIndex) -> Batch:
    """Gather, scale and augment one batch ``[B]`` or a stack of them ``[C, B]``."""
    if local.augment is None or index.augment is None:
        return Batch(*samples.take(index.rows, dtype), index.share, index.key)
    inputs, targets = samples.take_whole(index.rows, dtype)
    with explained("local: augment"):
        made = local.augment(inputs.flatten(0, index.rows.ndim - 1), index.augment.flatten())
    shape = (*index.rows.shape, *samples.shape)
    if not isinstance(made, Tensor) or made.numel() != math.prod(shape):
        found = f"shape {tuple(made.shape)}" if isinstance(made, Tensor) else f"type {type(made).__name__}"
        raise CounterpoiseError(
            "local: augment must return its inputs in the same shape, or smaller pictures that are all of one size; "
            f"this is of {found}."
        )
    return Batch(samples.normalised(made.reshape(shape)), targets, index.share, index.key)


def cropped(federation: Federation, local: Local) -> Federation:
    """The federation with its pictures cut to the size that the augmentation returns, which the model takes."""
    if local.augment is None or not len(federation.base):
        return federation
    if not isinstance(federation.base.inputs, Tensor):
        raise CounterpoiseError(
            "local: augment changes inputs that are one tensor, but these samples have inputs in several parts. Leave it "
            "out, or change the samples in the model's forward."
        )
    inputs, _ = federation.base.take_whole(torch.zeros(1, dtype=torch.int64), torch.get_default_dtype())
    made = local.augment(inputs, torch.zeros(1, dtype=torch.int64, device=inputs.device))
    if not isinstance(made, Tensor) or inputs.ndim < 3 or made.shape[:-2] != inputs.shape[:-2]:
        return federation  # `gather` says what is wrong, if anything is
    (height, width), (tall, wide) = inputs.shape[-2:], made.shape[-2:]
    smaller = tall <= height and wide <= width and (tall, wide) != (height, width)
    return federation.cropped((tall, wide)) if smaller else federation
