"""The batched backend: a chunk of clients trained as one, by `torch.func.vmap`.

A client that finishes before the others of its chunk is masked. On a CPU, clients with similar numbers of steps train
in one chunk. On a GPU, the phases of a chunk are captured as CUDA graphs, and a chunk becomes narrower as its clients
finish (`buckets`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.engine.acceleration.convolution import Lowered
from counterpoise.engine.acceleration.doors import use_cuda_graphs
from counterpoise.engine.acceleration.scripted import ScriptedSteps
from counterpoise.engine.backends.batching import Batches, BatchSequence
from counterpoise.engine.backends.buckets import buckets, overhead, room, widths
from counterpoise.engine.backends.chunks import CapturedChunk, Chunk, ChunkInputs, ChunkPlan, ScriptedChunk
from counterpoise.engine.backends.forward import Forward
from counterpoise.engine.backends.interface import Job, restore_order
from counterpoise.engine.clients.network import Network
from counterpoise.engine.clients.program import Program, Traces, TrainingResult
from counterpoise.engine.devices import put
from counterpoise.errors import Interrupted
from counterpoise.flat import Layout
from counterpoise.trees import fill, leaves, on, own, select

__all__ = ["COMPILED_RATIO", "Batched"]

_MOST_CHUNKS = 16
_RATIO, COMPILED_RATIO = 1.5, 4.0
"""The ratio of a captured chunk's width to its next smaller width, without and with compiled steps. Compiled steps have
fewer widths, because compiling one takes half a minute and capturing one a tenth of a second. On a CPU, a scripted step
also serves chunks down to 1 / _RATIO of its own size."""
_BUFFER_RATIO = 8.0
"""The same ratio for the sizes of a captured chunk's buffers, so that a small chunk has small buffers."""
_BATCH_BYTES, _MOST_BYTES = 24, 2**28
"""Bytes for each place of a captured chunk's batches, and the most bytes reserved for clients that train longer."""
_OFTEN = 200
"""A CPU scripts steps of one form after it has taken this many. Scripting takes as long as 100 to 200 steps."""


class Batched:
    """Trains clients in chunks of at most `chunk`."""

    def __init__(
        self,
        program: Program,
        module: nn.Module,
        layout: Layout,
        keyed: bool,
        chunk: int,
        dtype: torch.dtype,
        *,
        compiled: bool = False,
        lowered: bool = False,
        half: bool = False,
        script_steps: bool = False,
        graphs: bool = True,
        longest: int = 0,
    ) -> None:
        self.program = program
        self.chunk = chunk
        self.dtype = dtype
        self.compiled = compiled
        self.longest = longest
        """The most steps of a client in a round; 0 if that is unknown."""
        self.halt = threading.Event()
        modes = (Lowered,) if lowered else ()
        self.network = Network(module, layout, keyed, train=True, stacked=True, half=half, modes=modes)
        self._evaluate = Network(module, layout, keyed, train=False, stacked=True, half=half, modes=modes)
        self._forward = Forward(self._evaluate)
        self.captures = graphs and use_cuda_graphs(next(module.parameters()).device)
        self._captured: dict[tuple[Any, ...], CapturedChunk] = {}
        self.scripted_steps = ScriptedSteps(_OFTEN, script_steps)

    @cached_property
    def pool(self) -> Any:
        """The memory that captured steps share."""
        return torch.cuda.graph_pool_handle()

    @property
    def asynchronous(self) -> bool:
        return self.captures

    def plan(self, job: Job) -> list[ChunkPlan]:
        local, surveys = self.program.local, self.program.surveys
        batch = job.width(local.batch)
        surveyed = job.once(batch)
        plans = []

        def sequence(some: Job, whole: Job, passes: int) -> BatchSequence:
            # A captured step takes either sequences with a mask or those without, so one cohort uses one kind.
            ragged = (whole if self.captures else some).ragged
            return Batches(some, local, batch, passes, self.dtype).sequence(ragged)

        for places in self._cut(job, batch):
            clients = len(places)
            if more := self._room(clients, job.of is not None) - clients:
                places = torch.cat((places, places[-1:].expand(more)))
            some, once = job.some(places), surveyed.some(places)
            survey = sequence(once, surveyed, 1) if surveys else None
            trained = sequence(some, job, local.passes)
            plans.append(
                ChunkPlan(
                    places,
                    clients,
                    some.counts(local),
                    trained,
                    self._widths(some.steps, clients),
                    survey,
                    self._widths(once.steps, clients) if surveys else [],
                )
            )
        if (known := self._captured.get(_key(job, plans[0]))) and known.fits(plans[0]):
            known.load(plans[0])  # the device may still train the last round; the copies queue behind that
        return plans

    def _cut(self, job: Job, batch: int) -> Sequence[Tensor]:
        """Cut a cohort into chunks: the places of each chunk's clients."""
        if self.captures:
            return torch.split(job.steps.argsort(descending=True, stable=True), self.chunk)
        return buckets(job.steps, self.chunk, overhead(self.network.layout.size, batch))

    def _room(self, clients: int, joint: bool) -> int:
        """The size to which a chunk of this many clients is padded.

        On a GPU it is one of few sizes, so that few are captured. On a CPU, chunks of several runs, which become
        smaller as runs end, are padded to a size that is already scripted.
        """
        if self.captures:
            return room(clients, self.chunk, _BUFFER_RATIO)
        sizes = self.scripted_steps.sizes if joint else ()
        return min((size for size in sizes if clients <= size <= _RATIO * clients), default=clients)

    def _widths(self, steps: Tensor, clients: int) -> list[int]:
        """How many of a chunk's clients each step trains; the first `clients` are real."""
        if not self.captures:
            return [len(steps)] * int(steps.max())
        # A survey's steps need not be in falling order: there a client stays as long as any client behind it.
        falling = steps[:clients].flip(0).cummax(0).values.flip(0)
        return widths(falling, len(steps), COMPILED_RATIO if self.compiled else _RATIO)

    def train(self, job: Job, planned: list[ChunkPlan] | None = None) -> TrainingResult:
        with torch.no_grad():
            plans = planned or self.plan(job)
            return restore_order([self._train_plan(job, plan) for plan in plans], job.device)

    def _train_plan(self, job: Job, plan: ChunkPlan) -> tuple[Tensor, TrainingResult]:
        """The places of a chunk's clients in the cohort, and what they end the round with."""
        places, clients = plan.places, plan.clients
        results = self._train(job.some(places), plan)
        return (places, results) if len(places) == clients else (places[:clients], select(results, slice(clients)))

    def _train(self, job: Job, plan: ChunkPlan) -> TrainingResult:
        program, passes = self.program, self.program.local.passes
        chunk = self._make_chunk(job, plan)
        cursor = chunk.begin()
        if plan.survey is not None:
            for width in plan.survey_widths:
                self._check_halt()
                cursor = chunk.survey(cursor, width)
            cursor.step.zero_()
        steps, size = len(plan.widths), job.shared.start.shape[-1]
        traces = {s: job.shared.start.new_zeros(len(job.steps), -(-passes * steps // s), size) for s in program.periods}
        for epoch in range(passes):
            for step, width in enumerate(plan.widths):
                self._check_halt()
                cursor = chunk.step(cursor, width)
                if traces:
                    _keep_traces(traces, job, epoch, step, cursor.progress.w)
            if program.ends_epochs:
                cursor = chunk.end_epoch(cursor)
        return chunk.finish(cursor, traces)

    def _check_halt(self) -> None:
        if self.halt.is_set():
            raise Interrupted("Stopped.")

    def _make_chunk(self, job: Job, plan: ChunkPlan) -> Chunk:
        """The phases of a chunk: plain or scripted on a CPU, captured on a GPU."""
        inputs = ChunkInputs(
            job.sent, plan.counts, job.state, plan.sequence, plan.survey, job.letters, job.numbers, job.of is not None
        )
        if not self.captures:
            return (ScriptedChunk if self.scripted_steps.covers(job.samples) else Chunk)(
                self, job.samples, on(job.device, inputs)
            )
        key = _key(job, plan)
        chunk = self._captured.pop(key, None)
        if chunk is not None and chunk.fits(plan):
            chunk.load(plan)
            into = (chunk.shared, chunk.inputs.state, chunk.inputs.letters, chunk.inputs.numbers)
            fill(into, (inputs.shared, job.state, job.letters, job.numbers))
        else:
            # Each holds memory, so the least recently used one goes.
            while len(self._captured) >= _MOST_CHUNKS:
                del self._captured[next(iter(self._captured))]
            survey = plan.survey and plan.survey.padded(0)
            inputs = inputs._replace(sequence=plan.sequence.padded(self._length(plan)), survey=survey)
            chunk = CapturedChunk(self, job.samples, own(on(job.device, inputs)), plan)
        self._captured[key] = chunk
        return chunk

    def _length(self, plan: ChunkPlan) -> int:
        """How many steps the buffers of a captured chunk have room for: the longest client's, if that is not too much."""
        of_one = plan.sequence.rows[0].numel() * _BATCH_BYTES
        return self.longest if self.longest * of_one <= _MOST_BYTES else 0

    def forget(self) -> None:
        self._captured.clear()
        self._forward = Forward(self._evaluate)

    def outputs(self, models: Tensor, inputs: Any) -> Tensor:
        with torch.no_grad():
            return self._forward(models, inputs, shared=True, captures=self.captures)

    def own_outputs(self, models: Tensor, inputs: Any) -> Tensor:
        with torch.no_grad():
            return self._forward(models, inputs, shared=False, captures=self.captures)

    def output(self, model: Tensor, inputs: Any) -> Tensor:
        with torch.no_grad():
            return self._forward.alone(model, inputs, captures=self.captures)


def _key(job: Job, plan: ChunkPlan) -> tuple[Any, ...]:
    """What captured phases depend on: the samples and the shapes of a step's batches. Nothing else changes shape."""
    missing = tuple(t is None for sequence in (plan.sequence, plan.survey or ()) for t in sequence)
    shapes = tuple((t.shape[1:], t.dtype) for t in leaves((plan.sequence, plan.survey)))
    return id(job.samples), missing, shapes


def _keep_traces(traces: Traces, job: Job, epoch: int, step: int, w: Tensor) -> None:
    """Keep the displacements of the clients that are due by their own step count, which the host knows."""
    taken = epoch * job.steps + step
    for every, trace in traces.items():
        due = ((step < job.steps) & (taken % every == 0)).nonzero().squeeze(1)
        if not len(due):
            continue
        rows = taken[due] // every
        start = job.shared.start if job.of is None else job.shared.start[put(job.of[due], w.device)]
        if len(due) == len(w) and int(rows.min()) == int(rows.max()):  # then nothing has to be copied to a GPU
            trace[:, int(rows[0])] = w - start
        else:
            places = put(due, w.device)
            trace[places, put(rows, w.device)] = w[places] - start
