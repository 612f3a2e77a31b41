"""Losses and metrics of models on samples, and how often they are worth taking."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor
from torch.nn import functional as F

from counterpoise.engine.backend import Backend
from counterpoise.errors import CounterpoiseError
from counterpoise.federation.federation import Federation
from counterpoise.federation.samples import Samples

__all__ = ["Evaluation", "Evaluator", "Metric", "accuracy", "cross_entropy"]

Metric = Callable[[Tensor, Tensor], Tensor]
"""Outputs and targets of a batch to one number per sample."""

_TRAINING_COST = 3
"""A training pass over a sample costs about three evaluations of it."""
_MOST_CLIENTS = 10_000
"""Populations beyond this are not evaluated client by client."""


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the largest output is the target's."""
    return (outputs.argmax(1) == targets).to(outputs.dtype)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The usual loss of a classifier, one value per sample."""
    return F.cross_entropy(outputs, targets, reduction="none")


@dataclass(frozen=True)
class Evaluation:
    """When to evaluate: every so many rounds, on the test set and on clients' held-out parts.

    None is resolved from sample counts so that each takes at most half as much work as training does;
    0 is never. Otherwise the last round is always evaluated.
    """

    every: int | None = None
    clients_every: int | None = None
    batch: int = 500

    def __post_init__(self) -> None:
        for name, least in (("every", 0), ("clients_every", 0), ("batch", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise CounterpoiseError(f"evaluation: {name} must be a whole number at least {least}, not {value!r}.")

    @property
    def settled(self) -> bool:
        """Whether both intervals were given, so that nothing is left to resolve."""
        return self.every is not None and self.clients_every is not None

    def resolve(self, trained: float, test: int, heldout: int) -> Evaluation:
        """Fill in the intervals; `trained` is the number of samples a round trains on."""

        def interval(asked: int | None, samples: int) -> int:
            if asked is not None or not samples:
                return asked or 0
            return max(1, ceil(2 * samples / max(_TRAINING_COST * trained, 1)))

        return Evaluation(interval(self.every, test), interval(self.clients_every, heldout), self.batch)


class Evaluator:
    """Measures models on the server's test set and on clients' held-out parts, when it is time to."""

    def __init__(
        self,
        asked: Evaluation,
        backend: Backend,
        federation: Federation,
        metrics: Mapping[str, Metric],
        dtype: torch.dtype,
        trained: float,
    ) -> None:
        self._backend, self._federation, self._metrics, self._dtype = backend, federation, metrics, dtype
        self._rows, self._owners = _heldout(federation)
        tested = 0 if federation.test is None else len(federation.test)
        self.setting = asked.resolve(trained, tested, len(self._rows))

    def evaluate(self, model: Tensor, round: int, last: bool) -> tuple[dict[str, float], dict[str, dict[int, float]]]:
        """Metrics on the test set, and of each client, as far as this round is due for them."""
        test, whole, each = self._federation.test, {}, {}
        if test is not None and _due(self.setting.every, round, last):
            values = self._measure(model, test, torch.arange(len(test)))
            whole = {name: float(v.mean()) for name, v in values.items()}
        if self.clients_due(round, last):
            values = self._measure(model, self._federation.base, self._rows)
            each = {name: _by_owner(v, self._owners) for name, v in values.items()}
        return whole, each

    def clients_due(self, round: int, last: bool) -> bool:
        return len(self._rows) > 0 and _due(self.setting.clients_every, round, last)

    def evaluate_personal(self, models: Iterable[tuple[int, Tensor]]) -> dict[str, dict[int, float]]:
        """Metrics of each client's own model on its held-out part."""
        each: dict[str, dict[int, float]] = {}
        for client, model in models:
            rows = self._rows[self._owners == client]
            for name, v in self._measure(model, self._federation.base, rows).items() if len(rows) else ():
                each.setdefault(f"personal_{name}", {})[client] = float(v.mean())
        return each

    def _measure(self, model: Tensor, samples: Samples, rows: Tensor) -> dict[str, Tensor]:
        """Every metric, one value per sample."""
        parts: dict[str, list[Tensor]] = {name: [] for name in self._metrics}
        for some in torch.split(rows.to(model.device), self.setting.batch):
            inputs, targets = samples.take(some, self._dtype)
            outputs = self._backend.output(model, inputs)
            for name, metric in self._metrics.items():
                parts[name].append(metric(outputs, targets))
        return {name: torch.cat(values).to("cpu", torch.float64) for name, values in parts.items()}


def _due(every: int | None, round: int, last: bool) -> bool:
    return bool(every) and (last or round % (every or 1) == 0)


def _heldout(federation: Federation) -> tuple[Tensor, Tensor]:
    """All held-out rows and whose they are; a population too large to look at one by one has none."""
    clients = torch.arange(federation.clients if federation.clients <= _MOST_CLIENTS else 0)
    rows, sizes = federation.heldout.rows(clients), federation.heldout.sizes(clients)
    real = torch.arange(rows.shape[1]) < sizes[:, None]
    return rows[real], clients[:, None].expand_as(rows)[real]


def _by_owner(values: Tensor, owners: Tensor) -> dict[int, float]:
    clients, places, counts = torch.unique(owners, return_inverse=True, return_counts=True)
    totals = torch.zeros(len(clients), dtype=torch.float64).index_add_(0, places, values)
    return dict(zip(clients.tolist(), (totals / counts).tolist(), strict=True))
