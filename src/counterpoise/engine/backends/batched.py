"""The batched backend: a chunk of clients trained as one, by `torch.func.vmap`.

Clients with similar numbers of steps train in one chunk (`buckets`); a client that finishes before the others
of its chunk is masked. On a GPU, the phases of a chunk are recorded as CUDA graphs.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.engine.acceleration.convolution import Lowered
from counterpoise.engine.acceleration.replay import Replays
from counterpoise.engine.backends.buckets import buckets, overhead, room
from counterpoise.engine.backends.chunks import Chunk, Fixed, Piece, Recorded, Replayed, together
from counterpoise.engine.backends.interface import Batches, Job, Script, restored
from counterpoise.engine.clients.network import Network
from counterpoise.engine.clients.program import Program, Sent, Traces
from counterpoise.engine.devices import put
from counterpoise.engine.trees import fill, leaves, on, own, select
from counterpoise.errors import Interrupted
from counterpoise.flat import Layout

__all__ = ["Batched"]

_MOST_CHUNKS = 16
_OFTEN = 200
"""A CPU records steps of one form after it has taken this many; recording takes as long as 100 to 200 steps."""


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
        fused: bool = False,
        lowered: bool = False,
        half: bool = False,
        replays: bool = False,
        graphs: bool = True,
    ) -> None:
        self.program = program
        self.chunk = chunk
        self.dtype = dtype
        self.fused = fused
        self.halt = threading.Event()
        modes = (Lowered,) if lowered else ()
        self.network = Network(module, layout, keyed, train=True, stacked=True, half=half, modes=modes)
        self._evaluate = Network(module, layout, keyed, train=False, stacked=True, half=half, modes=modes)
        self.records = graphs and next(module.parameters()).is_cuda
        self._recorded: dict[tuple[Any, ...], Recorded] = {}
        self.replays = Replays(_OFTEN, replays)

    @property
    def asynchronous(self) -> bool:
        return self.records

    def plan(self, job: Job) -> list[Piece]:
        local, surveys = self.program.local, self.program.surveys
        batch = job.width(local.batch)
        looked = job.once(batch)
        pieces = []
        sized = {"size": room} if self.records else {}
        beside = overhead(job.device.type, self.network.layout.size, batch)

        def script(some: Job, whole: Job, passes: int) -> Script:
            # A recording is either for scripts with a mask or for those without, so the whole cohort uses one kind.
            ragged = (whole if self.records else some).ragged
            return Batches(some, local, batch, passes, self.dtype).script(ragged)

        for places in buckets(job.steps, self.chunk, beside, **sized):
            clients = len(places)
            if self.records and (more := room(clients, self.chunk) - clients):
                places = torch.cat((places, places[-1:].expand(more)))
            some, once = job.some(places), looked.some(places)
            survey = script(once, looked, 1) if surveys else None
            steps, looks = int(some.steps.max()), int(once.steps.max())
            trained = script(some, job, local.passes)
            pieces.append(Piece(places, clients, some.counts(local), trained, steps, survey, looks))
        if (known := self._recorded.get(_key(job, pieces[0]))) and known.fits(pieces[0]):
            known.load(pieces[0])  # the device may still train the last round; the copies wait behind that
        return pieces

    def train(self, job: Job, planned: list[Piece] | None = None) -> Sent:
        with torch.no_grad():
            pieces = planned or self.plan(job)
            return restored([self._replies(job, piece) for piece in pieces], job.device)

    def _replies(self, job: Job, piece: Piece) -> tuple[Tensor, Sent]:
        """The places of a chunk's clients in the cohort, and what they end the round with."""
        places, clients = piece.places, piece.clients
        sent = self._train(job.some(places), piece)
        return (places, sent) if len(places) == clients else (places[:clients], select(sent, slice(clients)))

    def _train(self, job: Job, piece: Piece) -> Sent:
        program, passes = self.program, self.program.local.passes
        chunk = self._chunk(job, piece)
        cursor = chunk.begin()
        if piece.survey is not None:
            for _ in range(piece.looks):
                self._go_on()
                cursor = chunk.survey(cursor)
            cursor.step.zero_()
        steps, size = piece.steps, len(job.shared.start)
        traces = {s: job.shared.start.new_zeros(len(job.steps), -(-passes * steps // s), size) for s in program.periods}
        for epoch in range(passes):
            for step in range(steps):
                self._go_on()
                cursor = chunk.step(cursor)
                if traces:
                    _note(traces, job, epoch, step, cursor.carry.w)
            if program.ends_epochs:
                cursor = chunk.end_epoch(cursor)
        return chunk.finish(cursor, traces)

    def _go_on(self) -> None:
        if self.halt.is_set():
            raise Interrupted("Stopped.")

    def _chunk(self, job: Job, piece: Piece) -> Chunk:
        """The phases of a chunk: plain or replayed on a CPU, recorded on a GPU."""
        fixed = Fixed(job.shared, piece.counts, job.state, piece.script, piece.survey)
        if not self.records:
            return (Replayed if self.replays.of(job.samples) else Chunk)(self, job.samples, on(job.device, fixed))
        key = _key(job, piece)
        chunk = self._recorded.pop(key, None)
        if chunk is not None and chunk.fits(piece):
            chunk.load(piece)
            fill((chunk.shared, chunk.fixed.state), (job.shared, job.state))
        else:
            # Each holds memory of its own, so the least recently used one goes.
            while len(self._recorded) >= _MOST_CHUNKS:
                del self._recorded[next(iter(self._recorded))]
            fixed = fixed._replace(script=piece.script.roomy, survey=piece.survey and piece.survey.roomy)
            chunk = Recorded(self, job.samples, own(on(job.device, fixed)))
            chunk.loaded = piece
        self._recorded[key] = chunk
        return chunk

    def outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            some = torch.split(models, self.chunk)
            return torch.cat([together(self._evaluate, (0, None), models, inputs) for models in some])

    def own_outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return together(self._evaluate, (0, 0), models, inputs)

    def output(self, model: Tensor, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return self._evaluate(model, inputs, alone=not self.records)


def _key(job: Job, piece: Piece) -> tuple[Any, ...]:
    """What recorded phases depend on: the samples and the shapes of a step's batches. Nothing else changes shape."""
    missing = tuple(t is None for script in (piece.script, piece.survey or ()) for t in script)
    shapes = tuple((t.shape[1:], t.dtype) for t in leaves((piece.script, piece.survey)))
    return id(job.samples), missing, shapes


def _note(traces: Traces, job: Job, epoch: int, step: int, w: Tensor) -> None:
    """Keep the displacements of the clients that are due by their own step count, which the host knows."""
    taken = epoch * job.steps + step
    for every, trace in traces.items():
        due = ((step < job.steps) & (taken % every == 0)).nonzero().squeeze(1)
        if len(due):
            places, rows = (put(t, w.device) for t in (due, taken[due] // every))
            trace[places, rows] = w[places] - job.shared.start
