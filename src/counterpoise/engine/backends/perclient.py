"""The per-client backend: ordinary autograd, one client at a time on each of several threads.

It is the better choice on CPUs, except for small models, and it takes any model. Each thread owns a copy of the
module and runs its operations on one core, so a client's result does not depend on the number of threads. With
`script_steps`, a step that has been taken often is scripted, so that threads do not wait for each other's Python.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.engine.acceleration.scripted import ScriptedSteps
from counterpoise.engine.backends.batching import Batches, BatchIndex
from counterpoise.engine.backends.interface import Job, make_participants
from counterpoise.engine.clients.network import Network
from counterpoise.engine.clients.program import Participant, Program, Progress, Shared, TrainingResult
from counterpoise.engine.devices import put
from counterpoise.errors import Interrupted
from counterpoise.flat import Layout
from counterpoise.trees import fill, form, leaves, mapped, select

__all__ = ["PerClient"]

_PLANNED_TOGETHER = 16
_OFTEN = 5000
"""Steps on batches of one size are scripted after this many. Scripting takes 1.5 s, mostly to load modules of torch
once, and then saves 0.2 to 1.5 ms a step: a short run would lose time."""


class PerClient:
    """Trains clients one by one on `threads` threads."""

    asynchronous = False

    def __init__(
        self,
        program: Program,
        module: nn.Module,
        layout: Layout,
        keyed: bool,
        threads: int,
        dtype: torch.dtype,
        *,
        script_steps: bool = False,
    ) -> None:
        self.program = program
        self.dtype = dtype
        self.halt = threading.Event()
        self._module, self._layout, self._keyed = module, layout, keyed
        self._own = threading.local()
        self._pool = ThreadPoolExecutor(threads, "counterpoise", initializer=torch.set_num_threads, initargs=(1,))
        self._evaluate = Network(module, layout, keyed, train=False)
        self._scripted_steps = ScriptedSteps(_OFTEN, script_steps)

    def plan(self, job: Job) -> None:
        """Nothing: `train` plans as it goes."""

    def train(self, job: Job, planned: None = None) -> TrainingResult:
        # Longest first, so that no thread is left alone with a long client at the end. Batches are planned for
        # a few clients of similar size at once: planning one by one would hold up small models.
        order = job.steps.argsort(descending=True, stable=True)
        local, batch = self.program.local, job.width(self.program.local.batch)
        futures: dict[int, Future[TrainingResult]] = {}
        failed = threading.Event()
        try:
            for places in torch.split(order, _PLANNED_TOGETHER):
                some = job.some(places)
                counts = put(some.counts(local), some.device)
                participants = make_participants(counts, some.state, some.letters, some.numbers)
                passes = Batches(some, local, batch, local.passes, self.dtype)
                survey = Batches(some.once(batch), local, batch, 1, self.dtype) if self.program.surveys else None
                if self._scripted_steps.covers(job.samples):
                    self._scripted_steps.count(chain.from_iterable(chain.from_iterable(passes.counts)))
                    width = passes.rows.shape[-1]
                    # Script at most one size a round, before any client trains: torch would trace that training too.
                    fit = [due for due in self._scripted_steps.due if isinstance(due, int) and due <= width]
                    for size in fit[:1] if not futures else ():
                        self._pool.submit(self._script, size, some, select(participants, 0), passes).result()
                for row, place in enumerate(places.tolist()):
                    futures[place] = self._pool.submit(
                        self._train, some, select(participants, row), survey, passes, row, failed
                    )
            return _collected(futures, len(job.sizes))
        except BaseException:
            failed.set()
            for future in futures.values():
                future.cancel()
            raise

    def _script(self, size: int, job: Job, participant: Participant, passes: Batches) -> None:
        """Script the steps on batches of `size` samples, in a thread of the pool that also trains."""
        step = partial(_take_step, self.program, Network(self._module, self._layout, self._keyed, train=True), passes)
        with torch.no_grad():
            shared = _shared(job, 0)
            progress = self.program.begin(shared, participant)
            self._scripted_steps.script(size, step, (shared, participant), progress, passes.at(0, 0, 0, size))

    def _train(
        self,
        job: Job,
        participant: Participant,
        survey: Batches | None,
        passes: Batches,
        row: int,
        failed: threading.Event,
    ) -> TrainingResult:
        if not hasattr(self._own, "network"):
            self._own.network = Network(self._module, self._layout, self._keyed, train=True)
        network: Network = self._own.network
        program, shared = self.program, _shared(job, row)
        with torch.no_grad():
            progress = program.begin(shared, participant)
            if survey is not None:
                for step, count in enumerate(survey.counts[0][row]):
                    self._check_halt(failed)
                    batch = survey.gather(survey.at(row, 0, step, count))
                    progress = program.survey(network, shared, participant, progress, batch)
            steps = sum(len(counts[row]) for counts in passes.counts)
            traces = {s: shared.start.new_empty(-(-steps // s), len(shared.start)) for s in program.periods}
            taken, fixed_leaves = 0, list(leaves((shared, participant)))
            scripts = self._scripted_steps.covers(job.samples)
            for epoch, counts in enumerate(passes.counts):
                current_form = form(((shared, participant), progress)) if scripts else None
                for step, count in enumerate(counts[row]):
                    self._check_halt(failed)
                    index = passes.at(row, epoch, step, count)
                    if current_form and (scripted := self._scripted_steps.get(count, current_form)):
                        progress = scripted(fixed_leaves, progress, index)
                    else:
                        progress = _take_step(program, network, passes, (shared, participant), progress, index)
                    for every, trace in traces.items():
                        if taken % every == 0:
                            torch.sub(progress.w, shared.start, out=trace[taken // every])
                    taken += 1
                progress = program.end_epoch(shared, participant, progress)
            return program.finish(shared, participant, progress, traces)

    def _check_halt(self, failed: threading.Event) -> None:
        if self.halt.is_set() or failed.is_set():
            raise Interrupted("Stopped.")

    def forget(self) -> None:
        """Nothing: scripted steps hold no buffers."""

    def outputs(self, models: Tensor, inputs: Any) -> Tensor:
        return torch.stack([self.output(model, inputs) for model in models])

    def own_outputs(self, models: Tensor, inputs: Any) -> Tensor:
        return torch.stack([self.output(model, select(inputs, i)) for i, model in enumerate(models)])

    def output(self, model: Tensor, inputs: Any) -> Tensor:
        with torch.no_grad():
            return self._evaluate(model, inputs)


def _collected(futures: dict[int, Future[TrainingResult]], clients: int) -> TrainingResult:
    """The results in the cohort's order. Each is freed once it is copied; otherwise all of them would exist twice."""
    stacked: TrainingResult | None = None
    for place in list(futures):
        own = futures.pop(place).result()
        if stacked is None:
            stacked = mapped(lambda tensor: tensor.new_empty(clients, *tensor.shape), own)
        fill(select(stacked, place), own)
    assert stacked is not None
    return stacked


def _shared(job: Job, row: int) -> Shared:
    """What the client in a row of a job is sent."""
    return job.shared if job.of is None else select(job.shared, int(job.of[row]))


def _take_step(
    program: Program,
    network: Network,
    passes: Batches,
    fixed: tuple[Shared, Participant],
    progress: Progress,
    index: BatchIndex,
) -> Progress:
    return program.step(network, *fixed, progress, passes.gather(index))
