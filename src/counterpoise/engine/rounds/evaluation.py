"""Losses and metrics of models on samples, and how often they are worth computing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from counterpoise.engine.backends.interface import Backend
from counterpoise.engine.scores import Metric, limits_of
from counterpoise.errors import CounterpoiseError, brief, takes_only_its_options
from counterpoise.federation.assignment import Assignment, Elsewhere
from counterpoise.federation.federation import Federation
from counterpoise.federation.samples import Samples
from counterpoise.randomness import purpose, sample
from counterpoise.trees import expand, mapped, select

__all__ = ["WIDEST", "Evaluation", "Evaluator", "Measured", "Measuring"]

WIDEST = 2**28
"""So few samples are measured at once that no tensor of the forward pass has more numbers than this. It matters for
language models, which have an output for each place and token."""

_MOST = 10**9
"""Larger numbers are taken for a mistake."""
_TRAINING_COST = 3
"""A training pass over a sample costs about three evaluations of it."""
_MOST_TRAINED = 10_000
"""In larger federations, a fixed random sample of this many training samples is measured."""
_MOST_CLIENTS = 10_000
"""In larger populations, a fixed random sample of this many clients is evaluated, drawn by the seed."""


@takes_only_its_options()
@dataclass(frozen=True)
class Evaluation:
    """How often to evaluate on the test set and on clients' held-out parts, in rounds.

    0 means never; any other setting evaluates the last round too. If `every` or `clients_every` is None, it is chosen
    from the numbers of samples and steps, so that each of the two takes at most half as much work as training, and both
    together at most half of the run.

    `train_every` also measures the server's model on the clients' training samples, as ``train_accuracy`` and so on;
    None means never. At most 10,000 samples are measured, the same ones every time.
    """

    every: int | None = None
    """Rounds between two measurements on the server's test set; by default resolved from the sizes of the work."""
    clients_every: int | None = None
    """The same for the clients' held-out data."""
    batch: int = 500
    """Samples that are measured at once."""
    train_every: int | None = None
    """The same for the clients' training samples, at most 10,000 of them; by default never."""

    def __post_init__(self) -> None:
        for name, least in (("every", 0), ("clients_every", 0), ("batch", 1), ("train_every", 0)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not least <= value <= _MOST):
                raise CounterpoiseError(
                    f"evaluation: {name} must be a whole number from {least} to {_MOST}, not {brief(value)}."
                )

    @property
    def settled(self) -> bool:
        """Whether both intervals were given, so that nothing is left to resolve."""
        return self.every is not None and self.clients_every is not None

    def resolve(self, trained: float, test: int, heldout: int) -> Evaluation:
        """Fill in the intervals that are None: ``ceil(2 samples / (3 trained))``.

        `trained` is how many samples a round trains on, repetitions included. `test` and `heldout` are how many samples
        are measured; `heldout` counts a sample once for every model that its client is measured with.
        """

        def interval(asked: int | None, samples: int) -> int:
            if asked is not None or not samples:
                return asked or 0
            return max(1, ceil(2 * samples / max(_TRAINING_COST * trained, 1)))

        return replace(self, every=interval(self.every, test), clients_every=interval(self.clients_every, heldout))


class Measuring(NamedTuple):
    """Samples that a model is measured on: their rows, and how many of them at once."""

    samples: Samples
    rows: Tensor
    at_once: int | list[int]


Measured = tuple[dict[str, float], dict[str, dict[int, float]]]
"""Metrics of a model as a whole, and of each client on its own samples."""


class Evaluator:
    """Measures models on the server's test set and on clients' held-out parts, in the rounds that are due."""

    def __init__(
        self,
        asked: Evaluation,
        backend: Backend,
        federation: Federation,
        metrics: Mapping[str, Metric],
        dtype: torch.dtype,
        trained: float,
        models: int = 1,
        seed: int = 0,
        whole: bool = False,
        shared: bool = True,
        most: int = _MOST,
    ) -> None:
        """With `whole`, every set of samples is one batch: the test set, and each client's held-out part.

        Otherwise at most `most` samples are measured at once, even if more were asked for.
        Without `shared`, the server's model is not one that can be measured, and only personal models are.
        """
        self._whole, self._shared, self._at_once = whole, shared, min(asked.batch, most)
        self._backend, self._federation, self.metrics, self._dtype = backend, federation, metrics, dtype
        self._rows, self._owners = _heldout(federation, _draw_evaluated(federation.clients, seed))
        tested = 0 if federation.test is None or not shared else len(federation.test)
        self.setting = asked.resolve(trained, tested, models * len(self._rows))
        self._trained = _training_rows(federation.train, seed) if self.setting.train_every else None

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The names that a client's metrics can have, personal models included, with the limits of their values."""
        known = {name: limits_of(metric) for name, metric in self.metrics.items()}
        return known | {f"personal_{name}": range for name, range in known.items()}

    @property
    def blind(self) -> bool:
        """Whether there are no samples to measure a model on."""
        return self._federation.test is None and not len(self._rows) and self._trained is None

    @property
    def names(self) -> set[str]:
        """Every metric that rounds can measure, by the names that `counterpoise.measures.metrics_of` gives them."""
        due, found = self.due(1, last=True), {"train_loss"}
        found |= {*self.metrics} if "test" in due else set()
        found |= {f"train_{name}" for name in self.metrics} if "train" in due else set()
        found |= {f"client_{name}" for name in self.metrics} if "clients" in due else set()
        return found | ({f"personal_{name}" for name in self.metrics} if self.clients_due(1, last=True) else set())

    def evaluate(self, model: Tensor, round: int, last: bool) -> Measured:
        """Metrics on the test set and of each client, if they are due in this round."""
        return self._evaluate(model, self.due(round, last))

    def evaluate_late(self, model: Tensor, round: int) -> Measured:
        """Make up for what this round did not measure because it was not known to be the last one."""
        done = self.due(round, last=False)
        return self._evaluate(model, {what: on for what, on in self.due(round, last=True).items() if what not in done})

    def _evaluate(self, model: Tensor, due: Mapping[str, Measuring]) -> Measured:
        found = {what: self.measure(model[None], one, self._backend) for what, one in due.items()}
        return self.summarise({what: select(values, 0) for what, values in found.items()})

    def due(self, round: int, last: bool) -> dict[str, Measuring]:
        """What the server's model is measured on in this round: test, train, clients."""
        samples, due = self._federation, dict[str, Measuring]()
        if not self._shared:
            return due
        if samples.test is not None and _due(self.setting.every, round, last):
            due["test"] = self._set(samples.test, torch.arange(len(samples.test)))
        if self._trained is not None and _due(self.setting.train_every, round, last):
            due["train"] = self._set(samples.base, self._trained)
        if self.clients_due(round, last):
            due["clients"] = self._set(samples.base, self._rows)
            if self._whole:  # the rows of a client lie together
                each = torch.unique_consecutive(self._owners, return_counts=True)[1]
                due["clients"] = due["clients"]._replace(at_once=each.tolist())
        return due

    def _set(self, samples: Samples, rows: Tensor) -> Measuring:
        return Measuring(samples, rows, max(1, len(rows)) if self._whole else self._at_once)

    def summarise(self, found: Mapping[str, Mapping[str, Tensor]]) -> Measured:
        """Means of what was measured on the samples that were due, and each client's own means."""
        whole = {name: float(v.mean()) for name, v in found.get("test", {}).items()}
        # Not the loss: `train_loss` is what clients saw while they trained.
        whole |= {f"train_{name}": float(v.mean()) for name, v in found.get("train", {}).items() if name != "loss"}
        return whole, {name: _by_owner(v, self._owners) for name, v in found.get("clients", {}).items()}

    def clients_due(self, round: int, last: bool) -> bool:
        return len(self._rows) > 0 and _due(self.setting.clients_every, round, last)

    def evaluate_personal(
        self, seen: Iterable[int], models: Callable[[Sequence[int]], Tensor]
    ) -> dict[str, dict[int, float]]:
        """Metrics of personal models ``[M, D]`` on their held-out parts, for the clients seen that have one."""
        there = torch.tensor(sorted({*seen} & {*self._owners.tolist()}), dtype=torch.int64)
        if not len(there):  # no one's state is finite, or nothing was held out
            return {}
        sizes = self._federation.heldout.sizes(there)
        order = sizes.argsort(stable=True)  # similar sizes together, so that there is little padding
        each: dict[str, dict[int, float]] = {f"personal_{name}": {} for name in self.metrics}
        at_once = 1 if self._whole else max(1, self._at_once // int(sizes.max()))  # alone, a set has no padding
        for places in torch.split(order, at_once):
            clients = there[places]
            for name, values in self._measure_own(models(clients.tolist()), clients).items():
                each[f"personal_{name}"] |= dict(zip(clients.tolist(), values.tolist(), strict=True))
        return {name: dict(sorted(values.items())) for name, values in each.items()}

    def _measure_own(self, models: Tensor, clients: Tensor) -> dict[str, Tensor]:
        """Every metric of each client's own model ``[M]``: the mean over its held-out part."""
        heldout = self._federation.heldout
        rows, sizes = heldout.rows(clients), heldout.sizes(clients)
        inputs, targets = self._federation.base.take(rows.to(models.device), self._dtype)
        outputs = self._backend.own_outputs(models, inputs).flatten(0, 1)
        targets = mapped(lambda t: t.flatten(0, 1), targets)
        real = torch.arange(rows.shape[1]) < sizes[:, None]
        found = {}
        for name, metric in self.metrics.items():
            values = metric(outputs, targets).to("cpu", torch.float64).view(real.shape)
            found[name] = torch.where(real, values, 0).sum(1) / sizes
        return found

    def measure(self, models: Tensor, on: Measuring, backend: Backend) -> dict[str, Tensor]:
        """Every metric of each model on the same samples, one value per sample: ``[M, samples]``."""
        parts: dict[str, list[Tensor]] = {name: [] for name in self.metrics}
        alone = len(models) == 1
        for some in torch.split(on.rows.to(models.device), on.at_once):
            inputs, targets = on.samples.take(some, self._dtype)
            outputs = backend.output(models[0], inputs) if alone else backend.outputs(models, inputs).flatten(0, 1)
            repeated = targets if alone else mapped(lambda t: t.flatten(0, 1), expand(targets, len(models)))
            for name, metric in self.metrics.items():
                parts[name].append(metric(outputs, repeated).view(len(models), -1))
        return {name: torch.cat(values, 1).to("cpu", torch.float64) for name, values in parts.items()}


def _due(every: int | None, round: int, last: bool) -> bool:
    return bool(every) and (last or round % (every or 1) == 0)


def _draw_evaluated(population: int, seed: int) -> Tensor:
    if population <= _MOST_CLIENTS:
        return torch.arange(population)
    return sample(population, _MOST_CLIENTS, seed, purpose("evaluated clients")).sort().values


def _training_rows(train: Assignment, seed: int) -> Tensor:
    """The training samples that are measured: all, or a fixed random sample of them."""
    if isinstance(train, Elsewhere):
        raise CounterpoiseError(
            "evaluation: train_every measures the clients' training samples, which a deployment's server does not "
            "have. Leave it out; clients_every has the nodes evaluate on data they held out."
        )
    ends = train.sizes(torch.arange(train.clients)).cumsum(0)
    total = int(ends[-1])
    places = torch.arange(total)
    if total > _MOST_TRAINED:
        places = sample(total, _MOST_TRAINED, seed, purpose("training samples measured")).sort().values
    owners = torch.searchsorted(ends, places, right=True)
    found = []
    for some in torch.split(torch.unique(owners), 256):
        rows, first = train.rows(some), ends[some] - train.sizes(some)
        mine = torch.isin(owners, some)
        row = torch.searchsorted(some, owners[mine])
        found.append(rows[row, places[mine] - first[row]])
    return torch.cat(found)


def _heldout(federation: Federation, clients: Tensor) -> tuple[Tensor, Tensor]:
    """All held-out rows of these clients, and the client that owns each row."""
    rows, sizes = federation.heldout.rows(clients), federation.heldout.sizes(clients)
    real = torch.arange(rows.shape[1]) < sizes[:, None]
    return rows[real], clients[:, None].expand_as(rows)[real]


def _by_owner(values: Tensor, owners: Tensor) -> dict[int, float]:
    clients, places, counts = torch.unique(owners, return_inverse=True, return_counts=True)
    totals = torch.zeros(len(clients), dtype=torch.float64).index_add_(0, places, values)
    return dict(zip(clients.tolist(), (totals / counts).tolist(), strict=True))
