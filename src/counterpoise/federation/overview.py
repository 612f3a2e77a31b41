"""An overview of a federation: how many samples of each label each client has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.assignment import Assignment
from counterpoise.federation.samples import Samples

__all__ = ["Holder", "Overview", "holdings", "label_counts", "overview", "spread"]

_NAME = 200
"""The most characters of a name that are kept beside a run."""


class Holder(Protocol):
    """What an overview needs of a federation."""

    @property
    def base(self) -> Samples: ...
    @property
    def train(self) -> Assignment: ...
    @property
    def heldout(self) -> Assignment: ...
    @property
    def test(self) -> Samples | None: ...
    @property
    def probe(self) -> Samples | None: ...
    @property
    def proxy(self) -> Samples | None: ...
    @property
    def aside(self) -> int: ...
    @property
    def clients(self) -> int: ...
    @property
    def shape(self) -> Any: ...
    @property
    def classes(self) -> int | None: ...
    @property
    def client_names(self) -> Sequence[str] | None: ...
    @property
    def class_names(self) -> Sequence[str] | None: ...


def label_counts(federation: Holder, clients: torch.Tensor) -> np.ndarray:
    """``[clients, classes]`` samples of each label, held-out ones included."""
    if federation.classes is None:
        raise CounterpoiseError("These targets are not class numbers, so there are no labels to count.")
    shape = len(clients), federation.classes
    counts = torch.zeros(shape, dtype=torch.int64)
    for held in (federation.train, federation.heldout):
        rows, sizes = held.rows(clients), held.sizes(clients)
        real = torch.arange(rows.shape[1]) < sizes[:, None]
        owners = torch.arange(len(clients))[:, None].expand_as(rows)[real]
        places = owners * federation.classes + federation.base.targets[rows[real]]
        counts += torch.bincount(places, minlength=counts.numel()).view(shape)
    return counts.numpy()


def spread(count: int, most: int) -> torch.Tensor:
    """All numbers below `count`, or `most` of them, evenly spaced."""
    return torch.arange(count) if count <= most else torch.arange(most) * count // most


class Overview(NamedTuple):
    """A few numbers about who holds what."""

    clients: int
    samples: int
    unused: int
    """Samples that neither a client nor the server's own sets have."""
    smallest: int
    median: float
    largest: int
    labels: float
    """Mean number of different labels per client."""
    skew: float
    """Mean distance (total variation, 0 to 1) of clients' labels from those of all clients together."""


def overview(federation: Holder, counts: np.ndarray) -> Overview:
    """The numbers of a federation, given the label counts of all or some of its clients."""
    everyone = torch.arange(federation.clients)
    sizes = federation.train.sizes(everyone) + federation.heldout.sizes(everyone)
    reserved = federation.aside + sum(len(s) for s in (federation.probe, federation.proxy) if s is not None)
    held = counts[counts.sum(1) > 0]
    shares, all_of_them = held / held.sum(1, keepdims=True), counts.sum(0) / max(counts.sum(), 1)
    return Overview(
        federation.clients,
        int(sizes.sum()),
        max(0, len(federation.base) - int(sizes.sum()) - reserved),
        int(sizes.min()),
        float(sizes.double().quantile(0.5)) if len(sizes) < 1_000_000 else float(sizes.median()),
        int(sizes.max()),
        float((held > 0).sum(1).mean()) if len(held) else 0.0,
        float(np.abs(shares - all_of_them).sum(1).mean() / 2) if len(held) else 0.0,
    )


def holdings(federation: Holder, labelled: int = 200, sized: int = 10_000) -> dict[str, Any]:
    """Who holds what, as plain values small enough to keep beside every run.

    ``sizes`` counts the samples that each client trains on; it is left out if there are more than `sized` clients.
    ``labels`` counts the samples of each label, held-out ones included, for at most `labelled` clients, which
    ``shown`` lists. ``client_names`` and ``class_names`` are there if clients and classes have names.
    """
    found: dict[str, Any] = {"clients": federation.clients}
    if federation.client_names is not None and federation.clients <= sized:
        found["client_names"] = [name[:_NAME] for name in federation.client_names]
    if federation.class_names is not None and len(federation.class_names) <= sized:
        found["class_names"] = [name[:_NAME] for name in federation.class_names]
    if federation.clients <= sized:
        found["sizes"] = federation.train.sizes(torch.arange(federation.clients)).tolist()
    if federation.classes is not None:
        shown = spread(federation.clients, labelled)
        found |= {"shown": shown.tolist(), "labels": label_counts(federation, shown).tolist()}
    return found
