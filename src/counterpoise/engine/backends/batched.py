"""The batched backend: a chunk of clients trained as one, by `torch.func.vmap`.

Chunks are cut so that clients of like numbers of steps train together (`buckets`); a client that is
done before the others of its chunk is masked. On a GPU the phases of a chunk are recorded as CUDA graphs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import vmap

from counterpoise.engine.acceleration.convolution import Lowered
from counterpoise.engine.acceleration.graphs import Compiled, Recording
from counterpoise.engine.acceleration.replay import Replays
from counterpoise.engine.backends.buckets import buckets, overhead, room
from counterpoise.engine.backends.interface import Batches, Job, Script, gather, restored, staked
from counterpoise.engine.clients.network import Network
from counterpoise.engine.clients.program import Carry, Named, Program, Sent, Shared, Stake, Traces
from counterpoise.engine.devices import put
from counterpoise.engine.trees import aligned, fill, form, leaves, on, own, select, where
from counterpoise.errors import CounterpoiseError, Interrupted
from counterpoise.federation.samples import Samples
from counterpoise.flat import Layout

__all__ = ["Batched", "refused"]

_MOST_CHUNKS = 16
_OFTEN = 200
"""Steps of one form after which a CPU records them, which takes as long as 100 to 200 of them."""
_STACKS = ("vmap", "functorch", "BatchedTensor")
"""What torch calls them when it refuses something."""
T = TypeVar("T")
Phase = Callable[..., Carry]
"""A program's `step` or `survey`."""


class Fixed(NamedTuple):
    """What stays over the steps of a chunk: what clients are sent and bring, and their batches in training and in a first look."""

    shared: Shared
    counts: Tensor
    state: Named
    script: Script
    survey: Script | None


class Piece(NamedTuple):
    """What can be prepared of a chunk: its clients' places in the cohort, their counts, their batches and how many those are."""

    places: Tensor
    clients: int
    """How many of the places count; the rest repeat the last of them, for the chunk to have a size that is recorded."""
    counts: Tensor
    script: Script
    steps: int
    """In one pass."""
    survey: Script | None
    looks: int


class Cursor(NamedTuple):
    """Where a chunk is in its script, on the device, and what it carries there."""

    step: Tensor
    carry: Carry


class Chunk:
    """The phases of a chunk of clients."""

    def __init__(self, backend: Batched, samples: Samples, fixed: Fixed) -> None:
        self.backend, self.program, self.samples, self.fixed = backend, backend.program, samples, fixed
        self.shared, self.stake = fixed.shared, staked(fixed.counts, fixed.state)

    def begin(self) -> Cursor:
        carry = _together(self.program.begin, (None, 0), self.shared, self.stake)
        return Cursor(self.fixed.script.rows.new_zeros(()), carry)

    def survey(self, cursor: Cursor) -> Cursor:
        assert self.fixed.survey is not None
        return self.advance(self.program.survey, self.shared, self.stake, self.fixed.survey, cursor)

    def step(self, cursor: Cursor) -> Cursor:
        return self.advance(self.program.step, self.shared, self.stake, self.fixed.script, cursor)

    def end_epoch(self, cursor: Cursor) -> Cursor:
        return cursor._replace(
            carry=_together(self.program.end_epoch, (None, 0, 0), self.shared, self.stake, cursor.carry)
        )

    def finish(self, cursor: Cursor, traces: Traces) -> Sent:
        if not self.program.finishes:  # then nothing in it looks at one client: it holds for stacks as it stands
            return self.program.finish(self.shared, self.stake, cursor.carry, traces)
        return _together(self.program.finish, (None, 0, 0, 0), self.shared, self.stake, cursor.carry, traces)

    def advance(self, phase: Phase, shared: Shared, stake: Stake, script: Script, cursor: Cursor) -> Cursor:
        """One batch of every client that has one."""
        return Cursor(cursor.step + 1, self.move(phase, (shared, stake), cursor.carry, script.at(cursor.step)))

    def move(self, phase: Phase, fixed: tuple[Shared, Stake], carry: Carry, now: Script) -> Carry:
        local, network = self.program.local, self.backend.network
        batch = gather(self.samples, local, self.backend.dtype, now.rows, now.share, now.key, now.augment)
        after = _together(partial(phase, network), (None, 0, 0, 0), *fixed, carry, batch, draws="different")
        return after if now.active is None else Carry(*where(now.active, after, carry))


class Replayed(Chunk):
    """The same on a CPU: steps on batches of shapes that have been met often are replayed."""

    def __init__(self, backend: Batched, samples: Samples, fixed: Fixed) -> None:
        super().__init__(backend, samples, fixed)
        self.leaves = list(leaves((self.shared, self.stake)))

    def begin(self) -> Cursor:
        return self._laid(super().begin())

    def survey(self, cursor: Cursor) -> Cursor:
        return self._laid(super().survey(cursor))

    def end_epoch(self, cursor: Cursor) -> Cursor:
        return self._laid(super().end_epoch(cursor))

    def _laid(self, cursor: Cursor) -> Cursor:
        """Laid out as a step leaves it: not one row for all."""
        cursor = own(cursor)
        self.laid = form(((self.shared, self.stake), cursor.carry))
        return cursor

    def step(self, cursor: Cursor) -> Cursor:
        replays, move = self.backend.replays, partial(self.move, self.program.step)
        now = self.fixed.script.at(cursor.step)
        arguments = ((self.shared, self.stake), cursor.carry, now)
        shapes = tuple(t if t is None else t.shape for t in now)
        replays.meet([shapes])
        if shapes in replays.due:
            replays.record(shapes, move, *arguments)
        replay = replays.get(shapes, self.laid)
        return Cursor(cursor.step + 1, replay(self.leaves, *arguments[1:]) if replay else move(*arguments))


class Recorded(Chunk):
    """The same as CUDA graphs: made on first use, for all chunks of these shapes."""

    loaded: Piece | None = None
    """Whose batches lie in the buffers."""
    _written = True
    """Whether another phase wrote to the cursor since the last step."""

    def fits(self, piece: Piece) -> bool:
        """Whether the buffers are long enough."""
        return all(
            len(to) >= len(of) for to, of in zip(self._batches, leaves((piece.script, piece.survey)), strict=True)
        )

    def load(self, piece: Piece) -> None:
        if self.loaded is not piece:
            self.fixed.counts.copy_(piece.counts, non_blocking=True)
            for to, of in zip(self._batches, leaves((piece.script, piece.survey)), strict=True):
                to[: len(of)].copy_(of, non_blocking=True)
            self.loaded = piece

    @property
    def _batches(self) -> list[Tensor]:
        return list(leaves((self.fixed.script, self.fixed.survey)))

    @cached_property
    def _begin(self) -> Recording:
        begin = super().begin
        return Recording(lambda: aligned(begin()))  # not the model's buffers, which the cursor would write to

    @cached_property
    def _survey(self) -> Recording:
        return Recording(super().survey, self._cursor, into=self._cursor)

    @cached_property
    def _step(self) -> Recording:
        advance, cursor = partial(self.advance, self.program.step), self._cursor
        arguments = (self.shared, self.stake, self.fixed.script, cursor)
        return Recording(advance, *arguments, into=cursor, fused=self.backend.fused)

    @cached_property
    def _end_epoch(self) -> Recording:
        return Recording(super().end_epoch, self._cursor, into=self._cursor)

    @cached_property
    def _finish(self) -> Recording:
        return Recording(super().finish, self._cursor, {})

    @cached_property
    def _fused_finish(self) -> Compiled:
        def finish(shared: Shared, carry: Carry) -> Sent:
            return self.program.finish(shared, self.stake, carry, {})

        return Compiled(finish, self.shared, self._cursor.carry)

    @property
    def _cursor(self) -> Cursor:
        return self._begin.result  # type: ignore[no-any-return]

    def begin(self) -> Cursor:
        phases = {
            "_begin": True,
            "_survey": self.program.surveys,
            "_step": True,
            "_end_epoch": self.program.ends_epochs,
        }
        for phase, taken in phases.items():
            if taken:
                getattr(self, phase)  # recorded before the cursor holds anything, as a recording tries the phase
        self._written = True
        return self._begin()  # type: ignore[no-any-return]

    def survey(self, cursor: Cursor) -> Cursor:
        return self._survey()  # type: ignore[no-any-return]

    def step(self, cursor: Cursor) -> Cursor:
        if self._written:
            self._step.renew()
            self._written = False
        return self._step()  # type: ignore[no-any-return]

    def end_epoch(self, cursor: Cursor) -> Cursor:
        self._written = True
        return self._end_epoch()  # type: ignore[no-any-return]

    def finish(self, cursor: Cursor, traces: Traces) -> Sent:
        if not self.program.finishes:
            return self._fused_finish() if self.backend.fused else super().finish(cursor, traces)
        # A part may pass on what lies in the buffers, which belong to the next chunk.
        return own(super().finish(cursor, traces) if traces else self._finish())  # type: ignore[no-any-return]


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
            # What is recorded is for scripts with a mask or for those without: the whole cohort has the same.
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
            known.load(pieces[0])  # while the device may still train the round before, behind which the copies wait
        return pieces

    def train(self, job: Job, planned: list[Piece] | None = None) -> Sent:
        with torch.no_grad():
            pieces = planned or self.plan(job)
            return restored([self._replies(job, piece) for piece in pieces], job.device)

    def _replies(self, job: Job, piece: Piece) -> tuple[Tensor, Sent]:
        """The places of a chunk's clients in the cohort, and what they send."""
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
        """The phases of a chunk: as they are on a CPU, recorded on a GPU."""
        fixed = Fixed(job.shared, piece.counts, job.state, piece.script, piece.survey)
        if not self.records:
            return (Replayed if self.replays.of(job.samples) else Chunk)(self, job.samples, on(job.device, fixed))
        key = _key(job, piece)
        chunk = self._recorded.pop(key, None)
        if chunk is not None and chunk.fits(piece):
            chunk.load(piece)
            fill((chunk.shared, chunk.fixed.state), (job.shared, job.state))
        else:
            # Each holds memory of its own: the one not used for longest goes.
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
            return torch.cat([_together(self._evaluate, (0, None), models, inputs) for models in some])

    def own_outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return _together(self._evaluate, (0, 0), models, inputs)

    def output(self, model: Tensor, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return self._evaluate(model, inputs, alone=not self.records)


def _together(phase: Callable[..., T], over: tuple[int | None, ...], *arguments: Any, draws: str = "error") -> T:
    """A phase of one client, for all of a chunk at once."""
    try:
        return vmap(phase, over, randomness=draws)(*arguments)
    except RuntimeError as error:
        if not any(name in str(error) for name in _STACKS):
            raise
        reason = str(error).strip().split(". ")[0].split("\n")[0]
        raise refused(reason) from error


def refused(reason: str) -> CounterpoiseError:
    """What is said to a model or a hook that `vmap` does not take."""
    return CounterpoiseError(
        f"This model, or a part of the method, cannot be trained as one batch of clients ({reason}). Choose the per-client "
        "backend: engine=cp.Engine(backend='per-client'), or --set engine.backend=per-client."
    )


def _key(job: Job, piece: Piece) -> tuple[Any, ...]:
    """What recorded phases are good for: samples, and the shapes of a step's batches. All else is of one shape in a run."""
    missing = tuple(t is None for script in (piece.script, piece.survey or ()) for t in script)
    shapes = tuple((t.shape[1:], t.dtype) for t in leaves((piece.script, piece.survey)))
    return id(job.samples), missing, shapes


def _note(traces: Traces, job: Job, epoch: int, step: int, w: Tensor) -> None:
    """Keep the displacements of clients whose own count of steps is due; which those are is known on the host."""
    taken = epoch * job.steps + step
    for every, trace in traces.items():
        due = ((step < job.steps) & (taken % every == 0)).nonzero().squeeze(1)
        if len(due):
            places, rows = (put(t, w.device) for t in (due, taken[due] // every))
            trace[places, rows] = w[places] - job.shared.start
