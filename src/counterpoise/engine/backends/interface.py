"""A job, and what every backend does: train a job's clients, and compute the outputs of a stack of models."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from counterpoise.engine.clients.program import Named, Participant, Shared, TrainingResult
from counterpoise.engine.devices import put, ready
from counterpoise.federation.samples import Samples
from counterpoise.local import Local
from counterpoise.trees import cat, select

__all__ = ["Backend", "Job", "make_participants", "restore_order"]


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
    letters: Named = {}  # noqa: RUF012  # never written to
    """What each client alone is sent, stacked; on the samples' device."""
    numbers: Named = {}  # noqa: RUF012
    """The parts' numbers, stacked, if the clients belong to runs whose numbers differ; on the samples' device."""
    of: Tensor | None = None
    """``[C]`` if the clients belong to several runs: the row of `shared` that each of them is sent."""

    @property
    def device(self) -> torch.device:
        return self.samples.device

    @property
    def sent(self) -> Shared:
        """What the clients are sent: the same for all, or a row for each if they belong to several runs."""
        return self.shared if self.of is None else select(self.shared, put(self.of, self.device))

    def some(self, places: Tensor) -> Job:
        """The job of the clients at these places."""
        if _all_in_order(places, len(self.sizes)):
            return self
        sizes = self.sizes[places]
        there = put(places, self.device) if self.state or self.letters or self.numbers else places
        return Job(
            self.shared,
            self.samples,
            self.rows[places][:, : int(sizes.max())],
            sizes,
            self.steps[places],
            self.clients[places],
            self.keys[places],
            select(self.state, there),
            select(self.letters, there),
            select(self.numbers, there),
            None if self.of is None else self.of[places],
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


def make_participants(counts: Tensor, state: Named, letters: Named, numbers: Named) -> Participant:
    """What each client brings to a round, and what it alone is sent."""
    clients, sizes, steps, keys = counts.unbind()
    return Participant(clients, sizes, steps, keys, state, letters, numbers)


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
        """Prepare a job before its round begins, as far as this needs neither its `shared` nor its `state`."""

    def train(self, job: Job, planned: Any = None) -> TrainingResult:
        """What every client ends the round with, stacked in the job's order."""

    def forget(self) -> None:
        """Free what is kept for the next rounds: captured steps and their buffers."""

    def outputs(self, models: Tensor, inputs: Any) -> Tensor:
        """The outputs of models ``[M, D]`` in evaluation mode on the same inputs."""

    def own_outputs(self, models: Tensor, inputs: Any) -> Tensor:
        """The outputs of models ``[M, D]`` in evaluation mode, each on inputs of its own ``[M, B, ...]``."""

    def output(self, model: Tensor, inputs: Any) -> Tensor:
        """The output of one model in evaluation mode."""
