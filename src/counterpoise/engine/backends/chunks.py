"""The phases of a chunk of clients trained as one: plain, scripted on a CPU, or captured as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.func import vmap

from counterpoise.engine.acceleration.graphs import CapturedGraph, Compiled
from counterpoise.engine.acceleration.scripted import ScriptedSteps
from counterpoise.engine.backends.batching import BatchIndex, BatchSequence, gather
from counterpoise.engine.backends.interface import make_participants
from counterpoise.engine.backends.refusals import reason_of, refusal
from counterpoise.engine.clients.network import Network
from counterpoise.engine.clients.program import Named, Participant, Program, Progress, Shared, Traces, TrainingResult
from counterpoise.federation.samples import Samples
from counterpoise.trees import align, form, leaves, own, select, where

__all__ = ["CapturedChunk", "Chunk", "ChunkBackend", "ChunkInputs", "ChunkPlan", "ScriptedChunk", "together"]

_STACKS = ("vmap", "functorch", "BatchedTensor")
"""Words in torch's errors when `vmap` refuses something."""
T = TypeVar("T")
Phase = Callable[..., Progress]
"""A program's `step` or `survey`."""


class ChunkBackend(Protocol):
    """What a chunk needs from the backend that trains it."""

    program: Program
    network: Network
    dtype: torch.dtype
    compiled: bool
    """Whether steps are compiled."""
    scripted_steps: ScriptedSteps

    @property
    def pool(self) -> Any:
        """The memory that captured steps share."""


class ChunkInputs(NamedTuple):
    """What stays the same over a chunk's steps: what clients are sent, what they bring, their batches and survey."""

    shared: Shared
    counts: Tensor
    state: Named
    sequence: BatchSequence
    survey: BatchSequence | None
    letters: Named = {}  # noqa: RUF012  # never written to
    numbers: Named = {}  # noqa: RUF012
    stacked: bool = False
    """Whether `shared` has a row for each client."""


class ChunkPlan(NamedTuple):
    """What can be prepared of a chunk: its clients' places in the cohort, their counts and their batches."""

    places: Tensor
    clients: int
    """How many of the places are real clients; the rest repeat the last one, to pad the chunk to a captured size."""
    counts: Tensor
    sequence: BatchSequence
    widths: list[int]
    """How many of the clients each step of a pass trains: the first ones, which are those that still have a batch."""
    survey: BatchSequence | None
    survey_widths: list[int]
    """The same of the survey."""


class Cursor(NamedTuple):
    """A chunk's position in its sequence of batches, kept on the device, and its clients' progress."""

    step: Tensor
    progress: Progress


class Chunk:
    """The phases of a chunk of clients."""

    def __init__(self, backend: ChunkBackend, samples: Samples, inputs: ChunkInputs) -> None:
        self.backend, self.program, self.samples, self.inputs = backend, backend.program, samples, inputs
        self.shared = inputs.shared
        self.participant = make_participants(inputs.counts, inputs.state, inputs.letters, inputs.numbers)
        self.shared_dim = 0 if inputs.stacked else None
        """How `vmap` maps `shared`: a row for each client, or the same for all."""

    def begin(self) -> Cursor:
        progress = together(self.program.begin, (self.shared_dim, 0), self.shared, self.participant)
        return Cursor(self.inputs.sequence.rows.new_zeros(()), progress)

    def survey(self, cursor: Cursor, width: int) -> Cursor:
        assert self.inputs.survey is not None
        return self.advance(self.program.survey, self.shared, self.participant, self.inputs.survey, cursor)

    def step(self, cursor: Cursor, width: int) -> Cursor:
        """The next step of the first `width` clients; all of them, unless the chunk is captured."""
        return self.advance(self.program.step, self.shared, self.participant, self.inputs.sequence, cursor)

    def end_epoch(self, cursor: Cursor) -> Cursor:
        return cursor._replace(
            progress=together(
                self.program.end_epoch, (self.shared_dim, 0, 0), self.shared, self.participant, cursor.progress
            )
        )

    def finish(self, cursor: Cursor, traces: Traces) -> TrainingResult:
        if not self.program.finishes:  # then it is elementwise, and works on stacks as it is
            return self.program.finish(self.shared, self.participant, cursor.progress, traces)
        return together(
            self.program.finish, (self.shared_dim, 0, 0, 0), self.shared, self.participant, cursor.progress, traces
        )

    def advance(
        self, phase: Phase, shared: Shared, participant: Participant, sequence: BatchSequence, cursor: Cursor
    ) -> Cursor:
        """Run one batch for every client that still has one."""
        return Cursor(
            cursor.step + 1, self.move(phase, (shared, participant), cursor.progress, sequence.at(cursor.step))
        )

    def move(self, phase: Phase, fixed: tuple[Shared, Participant], progress: Progress, now: BatchIndex) -> Progress:
        batch = gather(self.samples, self.program.local, self.backend.dtype, now)
        phase = partial(phase, self.backend.network)
        after = together(phase, (self.shared_dim, 0, 0, 0), *fixed, progress, batch, draws="different")
        return after if now.active is None else Progress(*where(now.active, after, progress))


class ScriptedChunk(Chunk):
    """A chunk on a CPU that runs scripted steps on batches of shapes that it has met often."""

    def __init__(self, backend: ChunkBackend, samples: Samples, inputs: ChunkInputs) -> None:
        super().__init__(backend, samples, inputs)
        self.leaves = list(leaves((self.shared, self.participant)))

    def begin(self) -> Cursor:
        return self._lay_out(super().begin())

    def survey(self, cursor: Cursor, width: int) -> Cursor:
        return self._lay_out(super().survey(cursor, width))

    def end_epoch(self, cursor: Cursor) -> Cursor:
        return self._lay_out(super().end_epoch(cursor))

    def _lay_out(self, cursor: Cursor) -> Cursor:
        """The cursor laid out as a step leaves it: with a row for each client, not one row expanded."""
        cursor = own(cursor)
        self.current_form = form(((self.shared, self.participant), cursor.progress))
        return cursor

    def step(self, cursor: Cursor, width: int) -> Cursor:
        scripted_steps, move = self.backend.scripted_steps, partial(self.move, self.program.step)
        now = self.inputs.sequence.at(cursor.step)
        arguments = ((self.shared, self.participant), cursor.progress, now)
        shapes = tuple(t if t is None else t.shape for t in now)
        scripted_steps.count([shapes])
        if shapes in scripted_steps.due:
            scripted_steps.script(shapes, move, *arguments)
        scripted = scripted_steps.get(shapes, self.current_form)
        return Cursor(cursor.step + 1, scripted(self.leaves, *arguments[1:]) if scripted else move(*arguments))


class CapturedChunk(Chunk):
    """The phases as CUDA graphs, captured on first use and run for all chunks of these shapes.

    A step of fewer clients than the chunk has is a graph of its own, on the first rows of the same buffers.
    """

    loaded: ChunkPlan
    """The plan whose batches lie in the buffers."""
    _current: CapturedGraph | None = None
    """The step run last, if no other phase wrote to the cursor since."""

    def __init__(self, backend: ChunkBackend, samples: Samples, inputs: ChunkInputs, plan: ChunkPlan) -> None:
        super().__init__(backend, samples, inputs)
        self.loaded = plan
        self._steps: dict[int, CapturedGraph] = {}
        self._surveys: dict[int, CapturedGraph] = {}
        """By width."""

    def fits(self, plan: ChunkPlan) -> bool:
        """Whether the buffers are long enough for a plan."""
        return all(
            len(to) >= len(of) for to, of in zip(self._batches, leaves((plan.sequence, plan.survey)), strict=True)
        )

    def load(self, plan: ChunkPlan) -> None:
        if self.loaded is not plan:
            self.inputs.counts.copy_(plan.counts, non_blocking=True)
            for to, of in zip(self._batches, leaves((plan.sequence, plan.survey)), strict=True):
                to[: len(of)].copy_(of, non_blocking=True)
            self.loaded = plan

    @property
    def _batches(self) -> list[Tensor]:
        return list(leaves((self.inputs.sequence, self.inputs.survey)))

    @cached_property
    def _begin(self) -> CapturedGraph:
        begin = super().begin
        return CapturedGraph(lambda: align(begin()))  # a copy: the cursor must not write to the model's buffers

    def _capture(self, phase: Phase, sequence: BatchSequence, width: int, compiled: bool) -> CapturedGraph:
        """A phase of the first `width` clients."""
        shared = select(self.shared, slice(width)) if self.inputs.stacked else self.shared
        some = BatchSequence(*(t if t is None else t[:, :width] for t in sequence))  # type: ignore[arg-type]
        cursor = Cursor(self._cursor.step, select(self._cursor.progress, slice(width)))
        arguments = (shared, select(self.participant, slice(width)), some, cursor)
        return CapturedGraph(
            partial(self.advance, phase), *arguments, into=cursor, compiled=compiled, pool=self.backend.pool
        )

    @cached_property
    def _end_epoch(self) -> CapturedGraph:
        return CapturedGraph(super().end_epoch, self._cursor, into=self._cursor, pool=self.backend.pool)

    @cached_property
    def _finish(self) -> CapturedGraph:
        return CapturedGraph(super().finish, self._cursor, {})

    @cached_property
    def _compiled_finish(self) -> Compiled:
        def finish(shared: Shared, progress: Progress) -> TrainingResult:
            return self.program.finish(shared, self.participant, progress, {})

        return Compiled(finish, self.shared, self._cursor.progress)

    @property
    def _cursor(self) -> Cursor:
        return self._begin.result  # type: ignore[no-any-return]

    def begin(self) -> Cursor:
        # Capture before the cursor holds anything, because a capture runs the phase.
        known = [*self._steps]
        for width in dict.fromkeys(self.loaded.widths):
            if width not in known and not (self.backend.compiled and any(other > width for other in known)):
                self._steps[width] = self._capture(
                    self.program.step, self.inputs.sequence, width, self.backend.compiled
                )
        for width in dict.fromkeys(self.loaded.survey_widths):
            if width not in self._surveys and self.inputs.survey is not None:
                self._surveys[width] = self._capture(self.program.survey, self.inputs.survey, width, compiled=False)
        if self.program.ends_epochs:
            _ = self._end_epoch
        self._current = None
        return self._begin()  # type: ignore[no-any-return]

    def survey(self, cursor: Cursor, width: int) -> Cursor:
        self._surveys[width]()
        return cursor

    def step(self, cursor: Cursor, width: int) -> Cursor:
        if width not in self._steps:  # compiling it would take longer than a wider step
            width = min(other for other in self._steps if other > width)
        if (step := self._steps[width]) is not self._current:
            step.renew()
            self._current = step
        step()
        return cursor

    def end_epoch(self, cursor: Cursor) -> Cursor:
        self._current = None
        return self._end_epoch()  # type: ignore[no-any-return]

    def finish(self, cursor: Cursor, traces: Traces) -> TrainingResult:
        if not self.program.finishes:
            return self._compiled_finish() if self.backend.compiled else super().finish(cursor, traces)
        # A part may return what lies in the buffers, which the next chunk overwrites.
        return own(super().finish(cursor, traces) if traces else self._finish())  # type: ignore[no-any-return]


def together(phase: Callable[..., T], dims: tuple[int | None, ...], *arguments: Any, draws: str = "error") -> T:
    """Run one client's phase for all clients of a chunk at once; `dims` and `draws` are those of `vmap`."""
    try:
        return vmap(phase, dims, randomness=draws)(*arguments)
    except RuntimeError as error:
        if not any(name in str(error) for name in _STACKS):
            raise
        raise refusal(reason_of(error)) from error
