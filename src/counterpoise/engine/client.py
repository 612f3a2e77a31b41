"""Local training of one client in four phases: begin, step, end of epoch, finish.

Each phase is a pure function of one client's tensors. The backends run them under `vmap` or one
client at a time; the Flower adapter runs them on a node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from counterpoise.engine.network import Network
from counterpoise.local import Local
from counterpoise.method import Client, Method, Part, Reply

__all__ = ["Batch", "Carry", "Loss", "Program", "Sent", "Shared", "Stake", "by_autograd", "by_functions"]

Named = dict[str, dict[str, Tensor]]
"""Tensors by part, then by name."""
Loss = Callable[[Tensor, Tensor], Tensor]
Curvature = Callable[[Tensor], Tensor]


class Shared(NamedTuple):
    """What all clients of a round have in common."""

    start: Tensor
    broadcast: Named
    lr: Tensor


class Stake(NamedTuple):
    """What one client brings to a round."""

    client: Tensor
    examples: Tensor
    steps: Tensor
    state: Named


class Batch(NamedTuple):
    """One batch; `share` is one over the count of real samples, and 0 on padding."""

    inputs: Tensor
    targets: Tensor
    share: Tensor
    key: Tensor


class Carry(NamedTuple):
    """What goes from step to step."""

    w: Tensor
    optimizer: dict[str, Tensor]
    memo: Named
    taken: Tensor
    loss: Tensor


class Sent(NamedTuple):
    """What a client ends a round with: to the server, the state it keeps, its mean loss."""

    update: Tensor
    reports: Named
    state: Named
    loss: Tensor


class Gradient(NamedTuple):
    value: Tensor
    gradient: Tensor
    curvature: Curvature | None


Differentiate = Callable[[Callable[[Tensor], Tensor], Tensor, bool], Gradient]


def by_functions(function: Callable[[Tensor], Tensor], w: Tensor, second: bool) -> Gradient:
    """Gradient by `torch.func`, which composes with `vmap`; curvature is reverse over reverse."""
    if not second:
        gradient, value = torch.func.grad_and_value(function)(w)
        return Gradient(value, gradient, None)
    gradient, pull, value = torch.func.vjp(torch.func.grad_and_value(function), w, has_aux=True)  # type: ignore[misc]
    return Gradient(value, gradient, lambda direction: pull(direction)[0])


def by_autograd(function: Callable[[Tensor], Tensor], w: Tensor, second: bool) -> Gradient:
    """Gradient by ordinary autograd, which takes any model; curvature is reverse over reverse."""
    with torch.enable_grad():
        w = w.detach().requires_grad_()
        value = function(w)
        (gradient,) = torch.autograd.grad(value, w, create_graph=second)
    if not second:
        return Gradient(value.detach(), gradient, None)

    def curvature(direction: Tensor) -> Tensor:
        if not gradient.requires_grad:  # the loss is linear in w
            return torch.zeros_like(w)
        return torch.autograd.grad(gradient, w, direction, retain_graph=True, materialize_grads=True)[0]

    return Gradient(value.detach(), gradient.detach(), curvature)


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

    def mean(self, per_sample: Tensor) -> Tensor:
        return (per_sample * self.batch.share).sum()

    def output_at(self, w: Tensor, call: str = "forward") -> Tensor:
        return self.network(w, self.batch.inputs, self.batch.key, call)

    def loss_at(self, w: Tensor) -> Tensor:
        return self.mean(self.program.loss(self.output_at(w), self.batch.targets))

    def gradient_at(self, w: Tensor) -> Tensor:
        return self.program.differentiate(self.loss_at, w, False).gradient

    def curvature(self, direction: Tensor) -> Tensor:
        assert self.hessian is not None, "a part that asks for curvature declares second_order"
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(part for part in self.method.parts if part.on_client))
        object.__setattr__(self, "second_order", any(part.second_order for part in self.parts))

    def _client(self, part: Part, shared: Shared, stake: Stake, memo: Named) -> Client:
        return Client(
            start=shared.start,
            broadcast=shared.broadcast.get(part.name, {}),
            shared={name: shared.broadcast.get(name, {}) for name in part.reads},
            state=stake.state.get(part.name, {}),
            memo=memo.get(part.name, {}),
            index=stake.client,
            examples=stake.examples,
            steps=stake.steps,
            lr=shared.lr,
            local=self.local,
        )

    def begin(self, shared: Shared, stake: Stake) -> Carry:
        memo: Named = {}
        for part in self.parts:
            if part.begin is not None:
                memo[part.name] = part.begin(self._client(part, shared, stake, memo))
        w = shared.start.clone()
        nothing = w.new_zeros(())
        return Carry(w, self.local.optimizer.init(w), memo, nothing, nothing.clone())

    def step(self, network: Network, shared: Shared, stake: Stake, carry: Carry, batch: Batch) -> Carry:
        """``g`` of task and losses; each part's change to it; decay; the optimiser's step."""
        w, optimizer = carry.w, self.local.optimizer
        before = BatchStep(self, network, batch, w, carry.taken, w, None)
        clients = [(part, self._client(part, shared, stake, carry.memo)) for part in self.parts]

        def objective(w: Tensor) -> Tensor:
            total = before.loss_at(w)
            for part, client in clients:
                if part.loss is not None:
                    total = total + part.loss(client, before, w)
            return total

        value, g, hessian = self.differentiate(objective, w, self.second_order)
        step = BatchStep(self, network, batch, w, carry.taken, g, hessian)
        for part, client in clients:
            if part.gradient is not None:
                g = part.gradient(client, step, g)
        if optimizer.weight_decay:
            g = g + optimizer.weight_decay * w
        move, state = optimizer.update(g, carry.optimizer, shared.lr)
        w = w - move
        count = carry.taken + 1
        after = BatchStep(self, network, batch, w, count, g, None)
        memo = dict(carry.memo)
        for part, client in clients:
            if part.after_step is not None:
                memo[part.name] = part.after_step(client, after)
        return Carry(w, state, memo, count, carry.loss + value)

    def end_epoch(self, shared: Shared, stake: Stake, carry: Carry) -> Carry:
        memo = dict(carry.memo)
        for part in self.parts:
            if part.after_epoch is not None:
                memo[part.name] = part.after_epoch(self._client(part, shared, stake, memo), carry.w)
        return carry._replace(memo=memo)

    def finish(self, shared: Shared, stake: Stake, carry: Carry) -> Sent:
        update, reports, states = carry.w - shared.start, {}, dict(stake.state)
        for part in self.parts:
            if part.finish is not None:
                client = self._client(part, shared, stake, carry.memo)
                reply = part.finish(client, Reply(update, {}, client.state))
                update = reply.update
                if reply.reports:
                    reports[part.name] = dict(reply.reports)
                if part.client_state is not None:
                    states[part.name] = dict(reply.state)
        return Sent(update, reports, states, carry.loss / carry.taken.clamp(min=1))
