"""The per-client backend: ordinary autograd, one client at a time on each of several threads.

The better choice on CPUs, and the one that takes any model. Each thread owns a copy of the module
and runs its operations on one core, so a client's result does not depend on how many threads there are.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from counterpoise.engine.backend import Batches, Job, load, select, stack
from counterpoise.engine.client import Program, Sent
from counterpoise.engine.network import Network
from counterpoise.errors import Interrupted
from counterpoise.flat import Layout

__all__ = ["PerClient"]


class PerClient:
    """Trains clients one by one on `threads` threads."""

    def __init__(
        self, program: Program, module: nn.Module, layout: Layout, keyed: bool, threads: int, dtype: torch.dtype
    ) -> None:
        self.program = program
        self.dtype = dtype
        self.halt = threading.Event()
        self._module, self._layout, self._keyed = module, layout, keyed
        self._own = threading.local()
        self._pool = ThreadPoolExecutor(threads, "counterpoise", initializer=torch.set_num_threads, initargs=(1,))
        self._evaluate = Network(module, layout, keyed, train=False)

    def train(self, job: Job) -> Sent:
        # Longest first, so that no thread is left alone with a long client at the end.
        order = job.steps.argsort(descending=True, stable=True)
        futures = {int(i): self._pool.submit(self._train, job.some(i[None])) for i in order}
        try:
            return Sent(*stack([futures[i].result() for i in range(len(job.sizes))]))
        except BaseException:
            for future in futures.values():
                future.cancel()
            raise

    def _train(self, job: Job) -> Sent:
        if not hasattr(self._own, "network"):
            self._own.network = Network(self._module, self._layout, self._keyed, train=True)
        network: Network = self._own.network
        program, local, shared = self.program, self.program.local, job.shared
        with torch.no_grad():
            stake = select(job.stakes(local), 0)
            carry = program.begin(shared, stake)
            for epoch in range(local.passes):
                batches = Batches(job, local, epoch, self.dtype)
                counts = batches.plan.real.sum(2)[0].tolist()
                for step, count in enumerate(counts):
                    if self.halt.is_set():
                        raise Interrupted("Stopped.")
                    rows, share, key, augment = batches.pick(step)
                    batch = load(
                        job.samples,
                        local,
                        self.dtype,
                        rows[0, :count],
                        share[0, :count],
                        key[0],
                        None if augment is None else augment[0, :count],
                    )
                    carry = program.step(network, shared, stake, carry, batch)
                carry = program.end_epoch(shared, stake, carry)
            return program.finish(shared, stake, carry)

    def outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        return torch.stack([self.output(model, inputs) for model in models])

    def output(self, model: Tensor, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return self._evaluate(model, inputs)
