"""Local training of one client in five phases: begin, survey, step, end of epoch, finish.

Each phase is a pure function of one client's tensors. The backends run them under `vmap` or one
client at a time; the Flower adapter runs them on a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from counterpoise.blame import call_hook
from counterpoise.engine.clients.keeping import KEPT
from counterpoise.engine.clients.network import Network
from counterpoise.engine.clients.returned import check_layout, check_named, check_number, check_step, check_vector
from counterpoise.engine.clients.statistics import STATISTICS
from counterpoise.engine.scores import Loss, real_places
from counterpoise.errors import CounterpoiseError
from counterpoise.local import Local
from counterpoise.method import Client, Method, Part, Reply

__all__ = [
    "Batch",
    "Participant",
    "Program",
    "Progress",
    "Shared",
    "TrainingResult",
    "by_autograd",
    "by_functions",
]

Named = dict[str, dict[str, Tensor]]
"""Tensors by part, then by name."""
Curvature = Callable[[Tensor], Tensor]


class Shared(NamedTuple):
    """What all clients of a round have in common."""

    start: Tensor
    broadcast: Named
    lr: Tensor
    """``[]`` the round's learning rate, or ``[E]`` that of each of its E passes"""


class Participant(NamedTuple):
    """One client in one round: its number, counts and key, the state it brings and what only it is sent."""

    client: Tensor
    examples: Tensor
    steps: Tensor
    key: Tensor
    state: Named
    letters: Named = {}  # noqa: RUF012  # never written to
    numbers: Named = {}  # noqa: RUF012
    """The parts' numbers (`Part.numbers`) of the client's run, if it trains in one batch with runs whose numbers differ."""


class Batch(NamedTuple):
    """One batch; `share` is one over the count of real samples, and 0 on padding."""

    inputs: Any
    targets: Any
    share: Tensor
    key: Tensor


class Progress(NamedTuple):
    """How far a client's training has come; each step returns a new one."""

    w: Tensor
    optimizer: dict[str, Tensor]
    memo: Named
    taken: Tensor
    loss: Tensor


Traces = dict[int, Tensor]
"""For each period s: a client's displacements after its steps 1, 1 + s, 1 + 2s, ... ``[S, D]``, padded."""


class TrainingResult(NamedTuple):
    """What a client ends a round with: update and reports for the server, the state it keeps, its mean loss."""

    update: Tensor
    reports: Named
    state: Named
    loss: Tensor


class Task(NamedTuple):
    """The task's own loss on a batch, and the batch norms' running statistics after its forward pass."""

    loss: Tensor
    statistics: dict[str, Tensor]


class Gradient(NamedTuple):
    """The gradient of an objective, the task within it, and the Hessian if it was asked for."""

    gradient: Tensor
    task: Task
    curvature: Curvature | None


Objective = Callable[[Tensor], tuple[Tensor, Task]]
"""``w -> (the value to differentiate, the task within it)``"""
Differentiate = Callable[[Objective, Tensor, bool], Gradient]


def by_functions(objective: Objective, w: Tensor, second: bool) -> Gradient:
    """Gradient by `torch.func`, which composes with `vmap`; curvature is reverse over reverse."""
    derive = torch.func.grad_and_value(objective, has_aux=True)
    if not second:
        gradient, (_, task) = derive(w)
        return Gradient(gradient, task, None)
    gradient, pull, (_, task) = torch.func.vjp(derive, w, has_aux=True)  # type: ignore[misc]
    return Gradient(gradient, task, lambda direction: pull(direction)[0])


def by_autograd(objective: Objective, w: Tensor, second: bool) -> Gradient:
    """Gradient by ordinary autograd, which takes any model; curvature is reverse over reverse.

    Inside a `loss` hook, w is already being differentiated, so the gradient stays differentiable.
    """
    nested = torch.is_grad_enabled() and w.requires_grad
    with torch.enable_grad():
        at = w if nested else w.detach().requires_grad_()
        value, task = objective(at)
        (gradient,) = torch.autograd.grad(value, at, create_graph=second or nested)

    def curvature(direction: Tensor) -> Tensor:
        if not gradient.requires_grad:  # the loss is linear in w
            return torch.zeros_like(w)
        return torch.autograd.grad(gradient, at, direction, retain_graph=True, materialize_grads=True)[0]

    if nested:
        return Gradient(gradient, task, None)
    return Gradient(gradient.detach(), task._replace(loss=task.loss.detach()), curvature if second else None)


@dataclass(frozen=True)
class BatchStep:
    """`counterpoise.method.Step` for one batch."""

    program: Program
    network: Network
    batch: Batch
    w: Tensor
    count: Tensor
    gradient: Tensor
    hessian: Curvature | None
    statistics: dict[str, Tensor] = field(default_factory=dict)

    @property
    def examples(self) -> Tensor:
        return (self.batch.share > 0).sum().to(self.w.dtype)

    @property
    def real(self) -> Tensor | None:
        return real_places(self.batch.inputs, self.batch.targets)

    def mean(self, per_sample: Tensor) -> Tensor:
        return (per_sample * self.batch.share).sum()

    def output_at(self, w: Tensor, call: str = "forward") -> Tensor:
        return self.network(w, self.batch.inputs, self.batch.key, call, self.batch.share)

    def loss_at(self, w: Tensor) -> Tensor:
        return self.mean(self.program.loss(self.output_at(w), self.batch.targets))

    def task_at(self, w: Tensor) -> Task:
        """The task's loss, whose forward pass moves the step's statistics."""
        if not self.statistics:
            return Task(self.loss_at(w), {})
        norms = self.network.norms
        norms.give(**self.statistics)
        return Task(self.loss_at(w), norms.take())

    def gradient_at(self, w: Tensor) -> Tensor:
        def objective(w: Tensor) -> tuple[Tensor, Task]:
            loss = self.loss_at(w)
            return loss, Task(loss, {})

        return self.program.differentiate(objective, w, False).gradient

    def curvature(self, direction: Tensor) -> Tensor:
        if self.hessian is None:
            raise CounterpoiseError("step.curvature is for the hook gradient of a Part(..., second_order=True).")
        return self.hessian(direction)


@dataclass(frozen=True)
class Program:
    """A method's client half, bound to a loss, to local settings and to a way to differentiate."""

    method: Method
    local: Local
    loss: Loss
    differentiate: Differentiate
    parts: tuple[Part, ...] = field(init=False)
    second_order: bool = field(init=False)
    surveys: bool = field(init=False)
    ends_epochs: bool = field(init=False)
    finishes: bool = field(init=False)
    """Whether `finish` does more than compute the update."""
    periods: tuple[int, ...] = field(init=False)
    """The intervals, in steps, at which parts ask for a client's displacement."""
    tracker: str | None = field(init=False)
    """The part that tracks the model's running statistics."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(part for part in self.method.parts if part.on_client))
        object.__setattr__(self, "second_order", any(part.second_order for part in self.parts))
        object.__setattr__(self, "surveys", any(part.survey is not None for part in self.parts))
        object.__setattr__(self, "ends_epochs", any(part.after_epoch is not None for part in self.parts))
        finishes = any(part.finish is not None or part.client_state is not None for part in self.parts)
        object.__setattr__(self, "finishes", finishes or self.local.optimizer.keep)
        periods = sorted({part.trace_every for part in self.parts if part.trace_every})
        object.__setattr__(self, "periods", tuple(periods))
        object.__setattr__(self, "tracker", next((part.name for part in self.parts if part.tracks), None))

    @property
    def code(self) -> list[Callable[..., Any]]:
        """The functions that a step calls besides the model."""
        hooks = [
            hook for part in self.parts for hook in (part.begin, part.loss, part.gradient, part.move, part.after_step)
        ]
        optimizer = self.local.optimizer
        code = (self.loss, optimizer.init, optimizer.step, self.local.augment, *hooks)
        return [f for f in code if f is not None]

    def _client(
        self, part: Part, shared: Shared, participant: Participant, memo: Named, lr: Tensor | None = None
    ) -> Client:
        """What a part's hooks see. `lr` is the rate of a step; a hook without a step sees the mean of the round."""
        return Client(
            start=shared.start,
            broadcast=shared.broadcast.get(part.name, {}),
            shared={name: shared.broadcast.get(name, {}) for name in part.reads},
            state=participant.state.get(part.name, {}),
            memo=memo.get(part.name, {}),
            index=participant.client,
            examples=participant.examples,
            steps=participant.steps,
            key=participant.key,
            lr=shared.lr.mean() if lr is None else lr,
            local=self.local,
            numbers=participant.numbers.get(part.name, part.numbers),
            letter=participant.letters.get(part.name, {}),
        )

    def _rate(self, shared: Shared, participant: Participant, progress: Progress) -> Tensor:
        """The learning rate of the next step."""
        if not self.local.schedule.by_epoch:
            return shared.lr
        epoch = progress.taken.long() * self.local.passes // participant.steps
        # A chunk also computes steps after a client's last one, and drops them.
        return shared.lr.gather(0, epoch.clamp(max=self.local.passes - 1).view(1)).squeeze(0)

    def _with_private(self, shared: Shared, participant: Participant) -> Shared:
        """What a client starts from: the server's model, with the client's own values of its private parameters."""
        for part in self.parts:
            if part.private is not None:
                own = participant.state[part.name]["private"]
                shared = shared._replace(start=shared.start.scatter(0, part.private, own))
        return shared

    def _restore_private(self, before: Tensor, after: Tensor) -> Tensor:
        """The vector `after` that hooks returned, with the private entries that it had `before`."""
        for part in self.parts:
            if part.private is not None:
                after = after.scatter(0, part.private, before.gather(0, part.private))
        return after

    def _without_private(self, vectors: Tensor) -> Tensor:
        """Vectors ``[..., D]`` with zeros in the private entries."""
        for part in self.parts:
            if part.private is not None:
                vectors = vectors.index_fill(-1, part.private, 0)
        return vectors

    def begin(self, shared: Shared, participant: Participant) -> Progress:
        shared, memo = self._with_private(shared, participant), Named()
        for part in self.parts:
            if part.begin is not None:
                memo[part.name] = check_named(
                    part, "begin", call_hook(part, "begin", self._client(part, shared, participant, memo))
                )
        w = shared.start.clone()
        nothing = w.new_zeros(())
        state = self.local.optimizer.init(w)
        if self.local.optimizer.keep:
            state = {name: kept.clone() for name, kept in participant.state[KEPT].items()}
        if not isinstance(state, Mapping):
            raise CounterpoiseError(f"The optimizer's init must return a dictionary, not {type(state).__name__}.")
        return Progress(w, state, memo, nothing, nothing.clone())

    def survey(
        self, network: Network, shared: Shared, participant: Participant, progress: Progress, batch: Batch
    ) -> Progress:
        """One batch of a pass over the data at the server's model: parts look at the batch, and the model does not move."""
        shared = self._with_private(shared, participant)
        step = BatchStep(self, network, batch, shared.start, progress.taken, shared.start, None)
        memo = dict(progress.memo)
        for part in self.parts:
            if part.survey is not None:
                client = self._client(part, shared, participant, progress.memo)
                memo[part.name] = check_layout(part, client, call_hook(part, "survey", client, step))
        return progress._replace(memo=memo)

    def step(
        self, network: Network, shared: Shared, participant: Participant, progress: Progress, batch: Batch
    ) -> Progress:
        """One step, in this order.

        The gradient of the task's and the parts' losses, the `gradient` hooks, clipping and weight decay, the
        optimiser's step, the `move` hooks and the `after_step` hooks.
        """
        w, lr, shared = progress.w, self._rate(shared, participant, progress), self._with_private(shared, participant)
        statistics = {name: progress.memo[self.tracker][name] for name in STATISTICS if self.tracker is not None}
        before = BatchStep(self, network, batch, w, progress.taken, w, None, statistics)
        clients = [(part, self._client(part, shared, participant, progress.memo, lr)) for part in self.parts]

        def objective(w: Tensor) -> tuple[Tensor, Task]:
            task = before.task_at(w)
            total = task.loss
            for part, client in clients:
                if part.loss is not None:
                    total = total + check_number(part, call_hook(part, "loss", client, before, w))
            return total, task

        g, task, hessian = self.differentiate(objective, w, self.second_order)
        step = BatchStep(self, network, batch, w, progress.taken, g, hessian)
        for part, client in clients:
            if part.gradient is not None:
                g = check_vector(part, "gradient", call_hook(part, "gradient", client, step, g), w)
        g = self.local.entering(w, self._restore_private(step.gradient, g))
        w, state = check_step(self.local.optimizer.step(w, g, progress.optimizer, lr), w, progress.optimizer)
        for part, client in clients:
            if part.move is not None:
                w = self._restore_private(w, check_vector(part, "move", call_hook(part, "move", client, step, w), w))
        count = progress.taken + 1
        after = BatchStep(self, network, batch, w, count, g, None, task.statistics)
        memo = dict(progress.memo)
        for part, client in clients:
            if part.after_step is not None:
                memo[part.name] = check_layout(part, client, call_hook(part, "after_step", client, after))
        return Progress(w, state, memo, count, progress.loss + task.loss)

    def end_epoch(self, shared: Shared, participant: Participant, progress: Progress) -> Progress:
        shared, memo = self._with_private(shared, participant), dict(progress.memo)
        for part in self.parts:
            if part.after_epoch is not None:
                client = self._client(part, shared, participant, memo)
                memo[part.name] = check_layout(part, client, call_hook(part, "after_epoch", client, progress.w))
        return progress._replace(memo=memo)

    def finish(self, shared: Shared, participant: Participant, progress: Progress, traces: Traces) -> TrainingResult:
        shared = self._with_private(shared, participant)
        update, reports, states = progress.w - shared.start, {}, dict(participant.state)
        trained = update = self._without_private(update)
        if self.local.optimizer.keep:
            states[KEPT] = progress.optimizer
        for part in self.parts:
            if part.finish is not None:
                client = self._client(part, shared, participant, progress.memo)
                if every := part.trace_every:
                    trace, rows = self._without_private(traces[every]), (participant.steps + every - 1) // every
                    client = replace(client, trace=trace, traced=rows)
                reply = call_hook(part, "finish", client, Reply(update, {}, client.state, trained))
                if not isinstance(reply, Reply):
                    found = type(reply).__name__
                    raise CounterpoiseError(f"part {part.name}: its hook finish must return a cp.Reply, not {found}.")
                update = check_vector(part, "finish", reply.update, update, "a cp.Reply whose update is ")
                if reply.reports:
                    reports[part.name] = check_named(part, "finish", reply.reports, "give reports as")
                if part.client_state is not None:
                    states[part.name] = check_layout(part, client, reply.state, "state")
                elif reply.state:
                    raise CounterpoiseError(
                        f"part {part.name}: its hook finish returned a state, but the part declares no client_state."
                    )
        update = self._without_private(update)
        return TrainingResult(update, reports, states, progress.loss / progress.taken.clamp(min=1))
