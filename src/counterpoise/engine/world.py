"""What a server's parts may ask of the outside, answered by a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from counterpoise.engine.client import Shared
from counterpoise.errors import CounterpoiseError
from counterpoise.federation.samples import Samples
from counterpoise.method import Cohort
from counterpoise.randomness import integer, purpose, sample

if TYPE_CHECKING:
    from counterpoise.engine.simulation import Simulation

__all__ = ["SimulatedWorld"]


class SimulatedWorld:
    """`counterpoise.method.World` of one round in the simulator."""

    def __init__(self, simulation: Simulation, round: int, shared: Shared | None) -> None:
        self._simulation, self._shared = simulation, shared
        self.round = round
        self.key = integer(simulation.seed, purpose("server"), round)
        self.population = simulation.federation.clients
        self.cohort = simulation.cohort_size
        self.local = simulation.program.local
        self.layout = simulation.layout

    def _probe(self) -> Samples:
        probe = self._simulation.federation.probe
        if probe is None:
            raise CounterpoiseError(
                "This method needs a probe set on the server; load the federation with probe=1 (samples per class) "
                "or probe='noise' or 'means' (made without samples), in a configuration data.probe = 1."
            )
        return probe

    @property
    def probe_targets(self) -> Tensor:
        return self._probe().targets

    def probe(self, models: Tensor) -> Tensor:
        samples = self._probe()
        rows = torch.arange(len(samples), device=samples.inputs.device)
        return self._simulation.backend.outputs(models, samples.take(rows, models.dtype)[0])

    def offers(self, call: str) -> bool:
        return callable(getattr(self._simulation.module, call, None))

    @property
    def proxy_size(self) -> int:
        proxy = self._simulation.federation.proxy
        return 0 if proxy is None else len(proxy)

    def rehearse(self, sizes: Sequence[int]) -> Cohort:
        simulation, proxy = self._simulation, self._simulation.federation.proxy
        if proxy is None:
            raise CounterpoiseError(
                "This method needs a proxy set on the server; load the federation with proxy=1000 (samples), "
                "in a configuration data.proxy = 1000."
            )
        if max(sizes) > len(proxy):
            raise CounterpoiseError(
                f"The server's proxy set has {len(proxy)} samples, and {max(sizes)} are needed. Load more with proxy=."
            )
        assert self._shared is not None
        imagined = -1 - torch.arange(len(sizes))
        rows = torch.stack(
            [
                sample(len(proxy), max(sizes), simulation.seed, purpose("rehearse"), self.round, i)
                for i in range(len(sizes))
            ]
        )
        state = {
            name: {k: v.expand(len(sizes), *v.shape) for k, v in store.initial.items()}
            for name, store in simulation.client_state.items()
        }
        job = simulation.job(self._shared, proxy, imagined, torch.tensor(list(sizes)), rows, self.round, state)
        return simulation.cohort(imagined.tolist(), job, simulation.backend.train(job))
