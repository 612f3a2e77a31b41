"""What the server's parts may ask of the world (`method.World`), answered by the server's own trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from counterpoise.engine.clients.program import Named, Shared
from counterpoise.engine.rounds.trainer import Trainer
from counterpoise.errors import CounterpoiseError
from counterpoise.federation.samples import Samples
from counterpoise.method import Cohort
from counterpoise.randomness import integer, purpose, sample

__all__ = ["ServerWorld"]


class ServerWorld:
    """`counterpoise.method.World` of one round, in the simulator and on a Flower server."""

    def __init__(
        self,
        trainer: Trainer,
        round: int,
        shared: Shared | None = None,
        letters: Callable[[Sequence[int]], Named] | None = None,
    ) -> None:
        self._trainer, self._shared, self._letters = trainer, shared, letters
        self.round = round
        self.key = integer(trainer.seed, purpose("server"), round)
        self.population = trainer.federation.clients
        self.cohort = trainer.cohort_size
        self.local = trainer.program.local
        self.layout = trainer.layout

    def _probe(self) -> Samples:
        probe = self._trainer.federation.probe
        if probe is None:
            raise CounterpoiseError(
                "This method needs a probe set on the server; load the federation with probe=1 (samples per class) "
                "or probe='noise' or 'means' (made without samples), in a configuration data.probe = 1."
            )
        if self._trainer.norm == "local":
            raise CounterpoiseError(
                "This method measures models on the server's probe set. With norm='local', the server's models have no "
                "batch-norm statistics, and those of clients stay there. Choose norm='average' or 'batch'."
            )
        return probe

    @property
    def probe_targets(self) -> Tensor:
        return self._probe().labels

    def probe(self, models: Tensor) -> Tensor:
        samples = self._probe()
        rows = torch.arange(len(samples), device=samples.device)
        models = self._trainer.measured(models, {} if self._shared is None else self._shared.broadcast)
        return self._trainer.backend.outputs(models, samples.take(rows, models.dtype)[0])

    def offers(self, call: str) -> bool:
        return callable(getattr(self._trainer.module, call, None))

    @property
    def proxy_size(self) -> int:
        proxy = self._trainer.federation.proxy
        return 0 if proxy is None else len(proxy)

    def rehearse(self, sizes: Sequence[int]) -> Cohort:
        trainer, proxy = self._trainer, self._trainer.federation.proxy
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
        assert self._letters is not None
        imagined = -1 - torch.arange(len(sizes))
        rows = torch.stack(
            [
                sample(len(proxy), max(sizes), trainer.seed, purpose("rehearse"), self.round, i)
                for i in range(len(sizes))
            ]
        )
        state = {
            name: {k: v.expand(len(sizes), *v.shape) for k, v in store.initial.items()}
            for name, store in trainer.client_state.items()
        }
        letters = self._letters(imagined.tolist())  # the same as for clients never seen
        job = trainer.make_job(
            self._shared, proxy, imagined, torch.tensor(list(sizes)), rows, self.round, state, letters
        )
        return trainer.make_cohort(imagined.tolist(), job, trainer.backend.train(job))
