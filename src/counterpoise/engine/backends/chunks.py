"""The phases of a chunk of clients trained as one: plain, replayed on a CPU, or recorded as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.func import vmap

from counterpoise.engine.acceleration.graphs import Compiled, Recording
from counterpoise.engine.acceleration.replay import Replays
from counterpoise.engine.backends.interface import Script, gather, staked
from counterpoise.engine.backends.refusals import reason_of, refused
from counterpoise.engine.clients.network import Network
from counterpoise.engine.clients.program import Carry, Named, Program, Sent, Shared, Stake, Traces
from counterpoise.engine.trees import aligned, form, leaves, own, where
from counterpoise.federation.samples import Samples

__all__ = ["Chunk", "Fixed", "Means", "Piece", "Recorded", "Replayed", "together"]

_STACKS = ("vmap", "functorch", "BatchedTensor")
"""Words in torch's errors when `vmap` refuses something."""
T = TypeVar("T")
Phase = Callable[..., Carry]
"""A program's `step` or `survey`."""


class Means(Protocol):
    """What a chunk needs from the backend that trains it."""

    program: Program
    network: Network
    dtype: torch.dtype
    fused: bool
    """Whether steps are compiled."""
    replays: Replays


class Fixed(NamedTuple):
    """What stays the same over a chunk's steps: what clients are sent, what they bring, their batches and survey."""

    shared: Shared
    counts: Tensor
    state: Named
    script: Script
    survey: Script | None


class Piece(NamedTuple):
    """What can be prepared of a chunk: its clients' places in the cohort, their counts and their batches."""

    places: Tensor
    clients: int
    """How many of the places are real clients; the rest repeat the last one, to pad the chunk to a recorded size."""
    counts: Tensor
    script: Script
    steps: int
    """Steps in one pass."""
    survey: Script | None
    looks: int
    """Steps of the survey."""


class Cursor(NamedTuple):
    """A chunk's position in its script, kept on the device, and what its clients carry."""

    step: Tensor
    carry: Carry


class Chunk:
    """The phases of a chunk of clients."""

    def __init__(self, means: Means, samples: Samples, fixed: Fixed) -> None:
        self.means, self.program, self.samples, self.fixed = means, means.program, samples, fixed
        self.shared, self.stake = fixed.shared, staked(fixed.counts, fixed.state)

    def begin(self) -> Cursor:
        carry = together(self.program.begin, (None, 0), self.shared, self.stake)
        return Cursor(self.fixed.script.rows.new_zeros(()), carry)

    def survey(self, cursor: Cursor) -> Cursor:
        assert self.fixed.survey is not None
        return self.advance(self.program.survey, self.shared, self.stake, self.fixed.survey, cursor)

    def step(self, cursor: Cursor) -> Cursor:
        return self.advance(self.program.step, self.shared, self.stake, self.fixed.script, cursor)

    def end_epoch(self, cursor: Cursor) -> Cursor:
        return cursor._replace(
            carry=together(self.program.end_epoch, (None, 0, 0), self.shared, self.stake, cursor.carry)
        )

    def finish(self, cursor: Cursor, traces: Traces) -> Sent:
        if not self.program.finishes:  # then it is elementwise, and works on stacks as it is
            return self.program.finish(self.shared, self.stake, cursor.carry, traces)
        return together(self.program.finish, (None, 0, 0, 0), self.shared, self.stake, cursor.carry, traces)

    def advance(self, phase: Phase, shared: Shared, stake: Stake, script: Script, cursor: Cursor) -> Cursor:
        """Run one batch for every client that still has one."""
        return Cursor(cursor.step + 1, self.move(phase, (shared, stake), cursor.carry, script.at(cursor.step)))

    def move(self, phase: Phase, fixed: tuple[Shared, Stake], carry: Carry, now: Script) -> Carry:
        local, network = self.program.local, self.means.network
        batch = gather(self.samples, local, self.means.dtype, now.rows, now.share, now.key, now.augment)
        after = together(partial(phase, network), (None, 0, 0, 0), *fixed, carry, batch, draws="different")
        return after if now.active is None else Carry(*where(now.active, after, carry))


class Replayed(Chunk):
    """A chunk on a CPU that replays steps on batches of shapes that it has met often."""

    def __init__(self, means: Means, samples: Samples, fixed: Fixed) -> None:
        super().__init__(means, samples, fixed)
        self.leaves = list(leaves((self.shared, self.stake)))

    def begin(self) -> Cursor:
        return self._laid(super().begin())

    def survey(self, cursor: Cursor) -> Cursor:
        return self._laid(super().survey(cursor))

    def end_epoch(self, cursor: Cursor) -> Cursor:
        return self._laid(super().end_epoch(cursor))

    def _laid(self, cursor: Cursor) -> Cursor:
        """The cursor laid out as a step leaves it: with a row for each client, not one row expanded."""
        cursor = own(cursor)
        self.laid = form(((self.shared, self.stake), cursor.carry))
        return cursor

    def step(self, cursor: Cursor) -> Cursor:
        replays, move = self.means.replays, partial(self.move, self.program.step)
        now = self.fixed.script.at(cursor.step)
        arguments = ((self.shared, self.stake), cursor.carry, now)
        shapes = tuple(t if t is None else t.shape for t in now)
        replays.meet([shapes])
        if shapes in replays.due:
            replays.record(shapes, move, *arguments)
        replay = replays.get(shapes, self.laid)
        return Cursor(cursor.step + 1, replay(self.leaves, *arguments[1:]) if replay else move(*arguments))


class Recorded(Chunk):
    """The phases as CUDA graphs, recorded on first use and replayed for all chunks of these shapes."""

    loaded: Piece | None = None
    """The piece whose batches lie in the buffers."""
    _written = True
    """Whether another phase wrote to the cursor since the last step."""

    def fits(self, piece: Piece) -> bool:
        """Whether the buffers are long enough for a piece."""
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
        return Recording(lambda: aligned(begin()))  # a copy: the cursor must not write to the model's buffers

    @cached_property
    def _survey(self) -> Recording:
        return Recording(super().survey, self._cursor, into=self._cursor)

    @cached_property
    def _step(self) -> Recording:
        advance, cursor = partial(self.advance, self.program.step), self._cursor
        arguments = (self.shared, self.stake, self.fixed.script, cursor)
        return Recording(advance, *arguments, into=cursor, fused=self.means.fused)

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
                getattr(self, phase)  # record before the cursor holds anything, because recording runs the phase
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
            return self._fused_finish() if self.means.fused else super().finish(cursor, traces)
        # A part may return what lies in the buffers, which the next chunk overwrites.
        return own(super().finish(cursor, traces) if traces else self._finish())  # type: ignore[no-any-return]


def together(phase: Callable[..., T], over: tuple[int | None, ...], *arguments: Any, draws: str = "error") -> T:
    """Run one client's phase for all clients of a chunk at once."""
    try:
        return vmap(phase, over, randomness=draws)(*arguments)
    except RuntimeError as error:
        if not any(name in str(error) for name in _STACKS):
            raise
        raise refused(reason_of(error)) from error
