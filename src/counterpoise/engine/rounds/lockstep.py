"""Several runs in lockstep: their clients train as one batch, and their servers stay apart.

Every client keeps its own run's model, broadcast, letters, learning rate, state, key and samples, so each run's cohorts,
batches and records are those it has alone. Runs may be in different rounds.
"""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from counterpoise.engine.backends.buckets import room
from counterpoise.engine.backends.joining import join_jobs, join_samples, number_equals, split_results
from counterpoise.engine.backends.making import choose_setting, join_work, make_backend
from counterpoise.engine.backends.refusals import CLIENT_NAMES, explained
from counterpoise.engine.clients.likeness import alike, why_different
from counterpoise.engine.clients.program import TrainingResult, by_autograd
from counterpoise.engine.rounds.evaluation import Evaluator, Measured, Measuring
from counterpoise.engine.rounds.loop import Opened, Replies
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.engine.rounds.server import Decision
from counterpoise.engine.rounds.simulation import Batch, Prepared, Simulation
from counterpoise.memory import out_of_memory
from counterpoise.models.copies import layer_settings
from counterpoise.trees import select

__all__ = ["Lockstep", "Member", "why_apart"]

log = logging.getLogger(__name__)

_NAMED = 4
"""The most runs that a warning names."""
_STACK_RATIO = 2.0
"""As runs end, a captured stack of models shrinks by this factor at a time."""


def why_apart(a: Simulation, b: Simulation) -> str:
    """Why two runs cannot train in one batch; empty if they can."""
    one, other = a.trainer, b.trainer
    engines = [replace(trainer.asked, store_gib=0.0) for trainer in (one, other)]
    checks = {
        "one of them trains on several processes": one.group is None and other.group is None,
        "a model draws random numbers that cannot be keyed": not (one.traits.unkeyed or other.traits.unkeyed),
        "their engines differ": engines[0] == engines[1],
        "their models differ": one.layout == other.layout and alike(_untrained(a), _untrained(b)),
        "their samples differ in shape, type or scaling": alike(_form(a), _form(b)),
    }
    apart = next((reason for reason, fine in checks.items() if not fine), "")
    return apart or why_different(one.program, other.program)


def _untrained(simulation: Simulation) -> list[Any]:
    """All of a model that is not trained: its layers, buffers and frozen weights."""
    module = simulation.trainer.module
    frozen = {name: p.data for name, p in module.named_parameters() if not p.requires_grad}
    return [layer_settings(module), repr(module), dict(module.named_buffers()), frozen]


def _form(simulation: Simulation) -> list[Any]:
    base = simulation.trainer.federation.base
    return [base.form, base.scale, base.shift, base.per_picture]


@dataclass
class Member:
    """One run's round in progress."""

    simulation: Simulation
    last: bool
    seconds: float = 0.0
    """The time of its own work so far and of its share of the joint work."""
    error: Exception | None = None
    opened: Opened = field(init=False)
    ready: Prepared = field(init=False)
    results: TrainingResult | None = None
    replies: Replies = field(init=False)
    decision: Decision = field(init=False)
    measured: Measured = field(init=False)
    record: RoundRecord = field(init=False)

    def attempt(self, work: Callable[[Member], None]) -> None:
        """Do a piece of this run's own work, time it, and keep its error: the other runs go on."""
        if self.error is not None:
            return
        begun = time.perf_counter()
        try:
            work(self)
        except Exception as error:  # raised again in the run that it belongs to
            self.error = error
            if out_of_memory(error):  # free what its frames hold, because the other runs need the memory
                traceback.clear_frames(error.__traceback__)
        self.seconds += time.perf_counter() - begun

    @property
    def trained(self) -> bool:
        """Whether its clients have trained; true if there are none in this round."""
        return self.ready.job is None or self.results is not None

    @property
    def steps(self) -> int:
        """The steps that its clients take in a pass: its share of the joint training."""
        return 0 if self.ready.job is None else int(self.ready.job.steps.sum())

    @property
    def scored(self) -> Tensor:
        """The model to be measured."""
        return self.simulation.loop.scored(self.decision)

    def open(self) -> None:
        self.opened = self.simulation.open()
        self.ready = self.simulation.prepare(self.opened)

    def train_alone(self) -> None:
        if self.ready.job is None:
            return
        with explained("Training a client", CLIENT_NAMES):
            self.results = self.simulation.backend.train(self.simulation.make_job(self.opened, self.ready))

    def decide(self) -> None:
        self.replies = self.simulation.reply(self.opened, self.ready, self.results)
        self.decision = self.simulation.loop.decide(self.opened, self.replies)

    def evaluate_alone(self) -> None:
        evaluator = self.simulation.trainer.evaluator
        self.measured = evaluator.evaluate(self.scored, self.opened.round, self.last)

    def commit(self) -> None:
        loop = self.simulation.loop
        closed = loop.conclude(self.opened, self.replies, self.decision, self.measured, self.last)
        self.record = loop.commit(closed._replace(seconds=self.seconds))

    def go_alone(self, train: Callable[[Member], None]) -> None:
        """Do the rest of the round alone. Then keep only the record, because other runs need the memory."""
        for work in (train, Member.decide, Member.evaluate_alone, Member.commit):
            self.attempt(work)
        for name in ("opened", "ready", "replies", "decision"):
            vars(self).pop(name, None)
        self.results = None


class Lockstep:
    """Runs that train together; `why_apart` is empty for any two of them."""

    def __init__(self, simulations: Sequence[Simulation]) -> None:
        trainers = [simulation.trainer for simulation in simulations]
        first = trainers[0]
        self.samples, begins = join_samples([trainer.federation.base for trainer in trainers])
        self._begins = dict(zip(map(id, simulations), begins, strict=True))
        sets = [samples for t in trainers for samples in (t.federation.base, t.federation.test)]
        self._set_numbers = dict(zip(map(id, sets), number_equals(sets), strict=True))
        """A number for each set of samples; equal sets have the same one."""
        # Decided once for all rounds: the joint program holds the first run's numbers, even when that run has ended.
        self._numbers_differ = any(_numbers(one) != _numbers(simulations[0]) for one in simulations)
        work = join_work([trainer.work for trainer in trainers])
        program = replace(first.program, differentiate=by_autograd)
        self.engine = choose_setting(first.asked, program, first.module, first.federation, first.traits, work)
        self._apart = False
        """Whether the runs train one by one for good, because together they ran out of memory."""
        self._most_models: dict[tuple[int, int], int] = {}
        """The most models measured at once on some samples, by the number of their set and how many samples they are."""
        _, self.backend = make_backend(self.engine, program, first.module, first.layout, first.traits.keyed, work, None)
        device = self.samples.device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        for simulation in simulations:
            chunk = self.engine.chunk if self.engine.backend == "batched" else None
            simulation.batch = Batch(
                len(simulations), work.cohort, self.engine.backend, chunk, bool(self.engine.compile)
            )

    def advance(self, turns: Sequence[tuple[Simulation, bool]]) -> list[RoundRecord | Exception]:
        """Run the next round of each run; return its record or its error. The flag says whether it is the run's last."""
        return self.finish(self.begin(turns))

    def begin(self, turns: Sequence[tuple[Simulation, bool]]) -> list[Member]:
        """Open the next round of each run and train its clients. A GPU may still be at work when this returns."""
        members = [Member(simulation, last) for simulation, last in turns]
        with self._setting(members[0]):
            for member in members:
                member.attempt(Member.open)
            self._train([m for m in members if m.error is None and m.ready.job is not None])
        return members

    def finish(self, members: Sequence[Member]) -> list[RoundRecord | Exception]:
        """The servers' half of a round that was begun."""
        with self._setting(members[0]):
            if all(m.trained for m in members if m.error is None):
                self._close(members)
            else:
                # If memory is short, all use the joint backend: each own one would keep threads or captured steps.
                for member in members:
                    member.go_alone(self._train_one if self._apart else Member.train_alone)
        if self._stream is not None:  # so that whatever is read from here on, such as a checkpoint, is complete
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        return [member.error or member.record for member in members]

    @contextlib.contextmanager
    def _setting(self, first: Member) -> Iterator[None]:
        """Torch's switches, and on a GPU a stream of this batch's own: another batch may train at the same time."""
        with first.simulation.trainer.setting(first.simulation.round + 1):
            if self._stream is None:
                yield
                return
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
            with torch.cuda.stream(self._stream):
                yield

    def _train(self, members: Sequence[Member]) -> None:
        """Train the clients of these runs together. If that fails, `finish` trains them run by run.

        `finish` does so, not the `except` below, because there the error still holds the joint tensors.
        """
        if self._apart or not members:
            return
        begun = time.perf_counter()
        try:
            self._train_together(members)
        except Exception as error:
            self._failed(members, "train", error)
        _share(members, [m.steps for m in members], time.perf_counter() - begun)

    def _train_together(self, members: Sequence[Member]) -> None:
        jobs = [m.simulation.make_job(m.opened, m.ready) for m in members]
        begins = [self._begins[id(m.simulation)] for m in members]
        numbers = [_numbers(m.simulation) for m in members] if self._numbers_differ else []
        results = self.backend.train(join_jobs(jobs, self.samples, begins, numbers))
        for member, own in zip(members, split_results(results, [len(job.sizes) for job in jobs]), strict=True):
            member.results = own

    def _train_one(self, member: Member) -> None:
        if member.ready.job is not None:
            self._train_together([member])

    def _failed(self, members: Sequence[Member], what: str, error: Exception) -> None:
        """Say why these runs do something one by one in this round. If memory ran out, they do so for good."""
        if not out_of_memory(error):
            log.warning("%s %s one by one, because together they failed: %s", _named(members), what, str(error))
            return
        log.warning(
            "%s %s one by one from now on: together they need more memory than there is (%s). To train fewer runs as "
            "one batch from the start, use --together N, or together=N in Python.",
            _named(members),
            what,
            str(error).partition("\n")[0],
        )
        self._apart = True
        self.backend.forget()
        for member in members:
            member.simulation.batch = None

    def _close(self, members: Sequence[Member]) -> None:
        """The servers' half of a round whose clients trained together."""
        self._wait([m for m in members if m.results is not None])
        for member in members:
            member.attempt(Member.decide)
        self._evaluate([m for m in members if m.error is None])
        for member in members:
            member.attempt(Member.commit)

    def _wait(self, members: Sequence[Member]) -> None:
        """Wait until a GPU has trained the clients, so that their time is not counted as the servers'."""
        if self._stream is not None:
            begun = time.perf_counter()
            self._stream.synchronize()
            _share(members, [m.steps for m in members], time.perf_counter() - begun)

    def _evaluate(self, members: Sequence[Member]) -> None:
        begun, measured, work = time.perf_counter(), None, [1 for _ in members]
        try:
            measured, work = self._measure(members)
        except Exception as error:
            self._failed(members, "are evaluated", error)
        _share(members, work, time.perf_counter() - begun)
        for place, member in enumerate(members):
            if measured is None:
                member.attempt(Member.evaluate_alone)
            else:
                member.measured = measured[place]

    def _padded(self, models: Tensor, on: Measuring) -> Tensor:
        """On a GPU, repeat the last model in place of runs that have ended, so that few stacks are captured."""
        if not self.backend.asynchronous:
            return models
        key = self._set_numbers[id(on.samples)], len(on.rows)
        self._most_models[key] = most = max(self._most_models.get(key, 0), len(models))
        return torch.cat((models, models[-1:].expand(room(len(models), most, _STACK_RATIO) - len(models), -1)))

    def _measure(self, members: Sequence[Member]) -> tuple[list[Measured], list[int]]:
        """Each run's metrics, and how many samples it was measured on. Models on the same samples form a stack."""
        evaluators = [member.simulation.trainer.evaluator for member in members]
        found: list[dict[str, dict[str, Tensor]]] = [{} for _ in members]
        work = [0 for _ in members]
        stacks: list[_Stack] = []
        for place, (member, evaluator) in enumerate(zip(members, evaluators, strict=True)):
            for what, on in evaluator.due(member.opened.round, member.last).items():
                work[place] += len(on.rows)
                stack = next((one for one in stacks if self._joins(one, on, evaluator)), None)
                if stack is None:
                    stacks.append(stack := _Stack(on, evaluator, []))
                stack.models.append((place, what))
        for on, evaluator, wanted in stacks:
            models = self._padded(torch.stack([members[place].scored for place, _ in wanted]), on)
            values = evaluator.measure(models, on, self.backend)
            for row, (place, what) in enumerate(wanted):
                found[place][what] = select(values, row)
        return [evaluator.summarise(values) for evaluator, values in zip(evaluators, found, strict=True)], work

    def _joins(self, stack: _Stack, on: Measuring, evaluator: Evaluator) -> bool:
        """Whether a model that is to be measured on these samples can be measured in a stack."""
        return (
            self._set_numbers[id(stack.on.samples)] == self._set_numbers[id(on.samples)]
            and torch.equal(stack.on.rows, on.rows)
            and stack.on.at_once == on.at_once
            and alike(stack.evaluator.metrics, evaluator.metrics)
        )


class _Stack(NamedTuple):
    """Models of several runs that are measured at once."""

    on: Measuring
    evaluator: Evaluator
    models: list[tuple[int, str]]
    """For each, the place of its run among the members, and what is measured: test, train or clients."""


def _numbers(simulation: Simulation) -> dict[str, Mapping[str, float]]:
    """The numbers of a run's parts."""
    return {part.name: part.numbers for part in simulation.trainer.program.parts if part.numbers}


def _named(members: Sequence[Member]) -> str:
    runs = [m.simulation for m in members]
    names = [f"{run.server.method.name} with seed {run.trainer.seed} in round {run.round + 1}" for run in runs]
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more runs" if len(names) > _NAMED else "")


def _share(members: Sequence[Member], work: Sequence[int], seconds: float) -> None:
    """Divide the time of joint work among the runs, by how much of the work is theirs."""
    for member, own in zip(members, work, strict=True):
        member.seconds += seconds * own / max(sum(work), 1)
