"""The batched backend: a chunk of clients trained as one, by `torch.func.vmap`.

Chunks are cut so that clients of like numbers of steps train together (`buckets`); a client that is
done before the others of its chunk is masked. On a GPU the step of a chunk is captured as a CUDA graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from counterpoise.engine.backend import Batches, Job, gather
from counterpoise.engine.buckets import OVERHEAD, buckets
from counterpoise.engine.client import Carry, Program, Sent, Stake, Traces
from counterpoise.engine.graphs import Captured
from counterpoise.engine.network import Network
from counterpoise.engine.trees import cat, layout, select, where
from counterpoise.errors import CounterpoiseError, Interrupted
from counterpoise.flat import Layout

__all__ = ["Batched"]

_MOST_GRAPHS = 16
Phase = Callable[..., Carry]
"""A program's `step` or `survey`."""


class Batched:
    """Trains clients in chunks of at most `chunk`."""

    def __init__(
        self, program: Program, module: nn.Module, layout: Layout, keyed: bool, chunk: int, dtype: torch.dtype
    ) -> None:
        self.program = program
        self.chunk = chunk
        self.dtype = dtype
        self.halt = threading.Event()
        self._network = Network(module, layout, keyed, train=True)
        self._evaluate = Network(module, layout, keyed, train=False)
        self._captured: dict[Any, Captured] = {}

    def train(self, job: Job) -> Sent:
        chunks = buckets(job.steps, self.chunk, OVERHEAD[job.rows.device.type])
        with torch.no_grad():
            pieces = [self._train(job.some(places)) for places in chunks]
            return Sent(*select(cat(pieces), torch.cat(chunks).argsort().to(job.rows.device)))

    def _train(self, job: Job) -> Sent:
        program, shared = self.program, job.shared
        stake = job.stakes(program.local)
        carry = vmap(program.begin, in_dims=(None, 0))(shared, stake)
        if program.surveys:
            carry = self._pass(program.survey, job.once(program.local), stake, carry, 0, {})
        longest = int(job.steps.max()) * program.local.passes
        size = len(shared.start)
        traces = {s: shared.start.new_zeros(len(job.steps), -(-longest // s), size) for s in program.periods}
        for epoch in range(program.local.passes):
            carry = self._pass(program.step, job, stake, carry, epoch, traces)
            carry = vmap(program.end_epoch, in_dims=(None, 0, 0))(shared, stake, carry)
        return vmap(program.finish, in_dims=(None, 0, 0, 0))(shared, stake, carry, traces)

    def _pass(self, phase: Phase, job: Job, stake: Stake, carry: Carry, epoch: int, traces: Traces) -> Carry:
        """One pass over the chunk's data, batch by batch."""
        ragged = int(job.steps.min()) < int(job.steps.max())
        advance = self._advance(phase, job, stake, carry, ragged)
        batches = Batches(job, self.program.local, epoch, self.dtype)
        for step in range(len(batches)):
            if self.halt.is_set():
                raise Interrupted("Stopped.")
            active = batches.plan.real[:, step, 0] if ragged else None
            carry = advance(carry, *batches.pick(step), active)
            _note(traces, job, epoch, step, carry.w)
        return carry

    def _advance(self, phase: Phase, job: Job, stake: Stake, carry: Carry, ragged: bool) -> Any:
        """The step of this chunk: as it is on a CPU, captured on a GPU."""
        step = partial(self._step, phase, job.samples)
        if job.rows.device.type != "cuda":
            return partial(step, job.shared, stake)
        key = (phase.__name__, ragged, id(job.samples), str(layout((job.shared, stake, carry))))
        if key not in self._captured:
            while len(self._captured) >= _MOST_GRAPHS:  # the oldest goes: each holds memory of its own
                del self._captured[next(iter(self._captured))]
            self._captured[key] = Captured(step)
        return self._captured[key].bind((job.shared, stake))

    def _step(
        self,
        phase: Phase,
        samples: Any,
        shared: Any,
        stake: Any,
        carry: Carry,
        rows: Tensor,
        share: Tensor,
        key: Tensor,
        augment: Tensor | None,
        active: Tensor | None,
    ) -> Carry:
        batch = gather(samples, self.program.local, self.dtype, rows, share, key, augment)
        step = vmap(partial(phase, self._network), in_dims=(None, 0, 0, 0), randomness="different")
        try:
            after = step(shared, stake, carry, batch)
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            reason = str(error).split(". ")[0].split("\n")[0]
            raise CounterpoiseError(
                f"This model cannot be trained as one batch of clients ({reason}). Choose the per-client backend: "
                "engine=cp.Engine(backend='per-client'), or --set engine.backend=per-client."
            ) from error
        if active is None:
            return after
        return Carry(*where(active, after, carry))

    def outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            call = vmap(self._evaluate, in_dims=(0, None))
            return torch.cat([call(some, inputs) for some in torch.split(models, self.chunk)])

    def own_outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return vmap(self._evaluate)(models, inputs)

    def output(self, model: Tensor, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return self._evaluate(model, inputs)


def _note(traces: Traces, job: Job, epoch: int, step: int, w: Tensor) -> None:
    """Keep the displacements of clients whose own count of steps is due; which those are is known on the host."""
    taken = epoch * job.steps + step
    for every, trace in traces.items():
        due = ((step < job.steps) & (taken % every == 0)).nonzero().squeeze(1)
        if len(due):
            places, rows = (t.to(w.device, non_blocking=True) for t in (due, taken[due] // every))
            trace[places, rows] = w[places] - job.shared.start
