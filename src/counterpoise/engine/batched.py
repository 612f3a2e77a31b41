"""The batched backend: a chunk of clients trained as one, by `torch.func.vmap`.

Clients are sorted by their number of steps before they are cut into chunks, so that few wait for
others; a client that is done is masked. On a GPU the step of a chunk is captured as a CUDA graph.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils import _pytree as pytree

from counterpoise.engine.backend import Batches, Job, load
from counterpoise.engine.client import Carry, Program, Sent
from counterpoise.engine.graphs import Captured
from counterpoise.engine.network import Network
from counterpoise.errors import CounterpoiseError, Interrupted
from counterpoise.flat import Layout

__all__ = ["Batched"]


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
        order = job.steps.argsort(stable=True)
        whole: list[Tensor] = []
        spec = None
        with torch.no_grad():
            for places in torch.split(order, self.chunk):
                leaves, spec = pytree.tree_flatten(self._train(job.some(places)))
                if not whole:
                    whole = [leaf.new_empty((len(order), *leaf.shape[1:])) for leaf in leaves]
                for target, leaf in zip(whole, leaves, strict=True):
                    target[places.to(leaf.device)] = leaf
        assert spec is not None
        return Sent(*pytree.tree_unflatten(whole, spec))

    def _train(self, job: Job) -> Sent:
        program, shared = self.program, job.shared
        stake = job.stakes(program.local)
        ragged = int(job.steps.min()) < int(job.steps.max())
        carry = vmap(program.begin, in_dims=(None, 0))(shared, stake)
        advance = self._advance(job, stake, carry, ragged)
        for epoch in range(program.local.passes):
            batches = Batches(job, program.local, epoch, self.dtype)
            for step in range(len(batches)):
                if self.halt.is_set():
                    raise Interrupted("Stopped.")
                active = batches.plan.real[:, step, 0] if ragged else None
                carry = advance(carry, *batches.pick(step), active)
            carry = vmap(program.end_epoch, in_dims=(None, 0, 0))(shared, stake, carry)
        return vmap(program.finish, in_dims=(None, 0, 0))(shared, stake, carry)

    def _advance(self, job: Job, stake: Any, carry: Carry, ragged: bool) -> Any:
        """The step of this chunk: as it is on a CPU, captured on a GPU."""
        step = partial(self._step, job.samples)
        if job.rows.device.type != "cuda":
            return partial(step, job.shared, stake)
        key = (len(job.sizes), ragged, id(job.samples))
        if key not in self._captured:
            self._captured[key] = Captured(step)
        return self._captured[key].bind((job.shared, stake))

    def _step(
        self,
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
        batch = load(samples, self.program.local, self.dtype, rows, share, key, augment)
        step = vmap(partial(self.program.step, self._network), in_dims=(None, 0, 0, 0), randomness="different")
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
        return Carry(*pytree.tree_map(partial(_where, active), after, carry))

    def outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            call = vmap(partial(self._evaluate), in_dims=(0, None))
            return torch.cat([call(some, inputs) for some in torch.split(models, self.chunk)])

    def output(self, model: Tensor, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return self._evaluate(model, inputs)


def _where(active: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(active.view(-1, *(1,) * (new.ndim - 1)), new, old)
