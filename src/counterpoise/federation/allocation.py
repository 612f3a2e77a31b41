"""Partitions in which each client draws a distribution of labels of its own, and its samples from that."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError, brief
from counterpoise.federation.assignment import Assignment, Table
from counterpoise.federation.coarse import CIFAR100
from counterpoise.federation.partition import (
    PARTITIONS,
    Clients,
    Partition,
    class_numbers,
    dirichlet_shares,
    generator_of,
    need,
)
from counterpoise.registry import Option

__all__ = ["client_dirichlet", "pachinko"]

Size = Annotated[int | None, Option("samples per client; by default as many as there are for each", low=1)]


@PARTITIONS.register("client-dirichlet")
def client_dirichlet(
    alpha: Annotated[float, Option("concentration; smaller is more skewed", above=0)],
    clients: Clients,
    size: Size = None,
    reuse: Annotated[bool, Option("deal a label that has run out once more, so that clients share samples")] = False,
    sizes: Annotated[list | None, Option("samples of each client, if they hold unequally many")] = None,  # type: ignore[type-arg]
) -> Partition:
    """Each client draws its labels by its own Dirichlet distribution; all hold equally many samples (Hsu et al. 2019).

    Clients draw one after the other, and a label that has run out is drawn no more. With `reuse` it is dealt from the
    beginning again, so every client keeps to its distribution. `sizes` says how many samples each client holds.
    """
    _check_sizes(sizes, clients, size)

    def assign(labels: Tensor, seed: int) -> Assignment:
        kinds, codes = np.unique(class_numbers(labels, "partition client-dirichlet").numpy(), return_inverse=True)
        if sizes and not reuse:
            need(len(codes), sum(sizes), f"partition client-dirichlet cannot deal sizes that sum to {sum(sizes)}")
        alike = sizes or (size if reuse and size else _size(len(codes), clients, size, "client-dirichlet"))
        each = np.broadcast_to(alike, clients)
        samples_of = np.bincount(codes)
        if reuse and each.max() > samples_of.min():
            raise CounterpoiseError(
                f"partition client-dirichlet: a client could draw {each.max()} samples of label "
                f"{kinds[samples_of.argmin()]}, which has {samples_of.min()}. Use a smaller size."
            )
        generator = generator_of(seed, "client-dirichlet")
        left = np.full(len(kinds), each.sum()) if reuse else samples_of
        counts = np.empty((clients, len(kinds)), dtype=np.int64)
        for own, held in zip(counts, each.tolist(), strict=True):
            own[:] = _draw(held, dirichlet_shares(alpha, left > 0, generator), left, generator)
            left = left - own
        return _deal(codes, counts, generator)

    return Partition(clients, assign)


@PARTITIONS.register("pachinko")
def pachinko(
    clients: Clients,
    size: Size = None,
    coarse_alpha: Annotated[float, Option("concentration over coarse classes; smaller is more skewed", above=0)] = 0.1,
    fine_alpha: Annotated[float, Option("concentration over the labels of a coarse class", above=0)] = 10.0,
    coarse: Annotated[list | None, Option("the coarse class of each label; by default CIFAR-100's")] = None,  # type: ignore[type-arg]
) -> Partition:
    """Each client draws coarse classes, then labels within them, each by its own distributions (Reddi et al. 2021).

    Clients draw one after the other. A label that has run out is drawn no more: the others of its coarse class take
    its place, and if there are none, the other coarse classes do.
    """
    tree = CIFAR100 if coarse is None else coarse
    if not tree or not all(type(group) is int for group in tree):
        raise CounterpoiseError(
            f"partition pachinko: coarse must be a list of whole numbers, one for each label, not {brief(coarse)}."
        )
    members = [np.flatnonzero(np.array(tree) == group) for group in sorted(set(tree))]

    def assign(labels: Tensor, seed: int) -> Assignment:
        codes = class_numbers(labels, "partition pachinko").numpy()
        if len(codes) and not 0 <= codes.min() <= codes.max() < len(tree):
            outside = codes.min() if codes.min() < 0 else codes.max()
            raise CounterpoiseError(
                f"partition pachinko knows the coarse classes of the labels 0 to {len(tree) - 1}, but this data has a "
                f"label {outside}. By default they are CIFAR-100's; for other data, give the option coarse."
            )
        each = _size(len(codes), clients, size, "pachinko")
        generator = generator_of(seed, "pachinko")
        left = np.bincount(codes, minlength=len(tree))
        counts = np.zeros((clients, len(tree)), dtype=np.int64)
        for own in counts:
            there = np.array([left[labels].sum() for labels in members])
            drawn = _draw(each, dirichlet_shares(coarse_alpha, there > 0, generator), there, generator)
            for group in np.flatnonzero(drawn):
                of = members[group]
                shares = dirichlet_shares(fine_alpha, left[of] > 0, generator)
                own[of] = _draw(drawn[group], shares, left[of], generator)
            left = left - own
        return _deal(codes, counts, generator)

    return Partition(clients, assign)


def _check_sizes(sizes: object, clients: int, size: int | None) -> None:
    """Refuse sizes that are not a whole number for each client, or that come with one size for all."""
    if sizes is None:
        return
    if not isinstance(sizes, list) or len(sizes) != clients or any(type(n) is not int or n < 1 for n in sizes):
        raise CounterpoiseError(
            f"partition client-dirichlet: sizes must be a list of {clients} whole numbers above 0, one for each client, "
            f"not {brief(sizes)}."
        )
    if size is not None:
        raise CounterpoiseError("partition client-dirichlet: give size or sizes, not both.")


def _size(samples: int, clients: int, size: int | None, name: str) -> int:
    """How many samples each client gets."""
    each = size or max(1, samples // clients)
    need(samples, clients * each, f"partition {name} cannot give each of {clients} clients {each} samples")
    return each


def _draw(count: int, shares: np.ndarray, left: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """How many of each label there are among `count` samples drawn one by one by `shares`, without replacement.

    Drawing by the shares of the labels that are left equals drawing by all shares and repeating every draw of a label
    that has run out. So all samples are drawn at once, and then those again that went beyond what is left.
    """
    taken = np.zeros_like(left)
    while count:
        there = left > taken
        chances = np.where(there, shares, 0.0)
        if chances.sum() == 0:  # all labels that this client would draw have run out
            chances = there.astype(float)
        new = np.minimum(generator.multinomial(count, chances / chances.sum()), left - taken)
        taken, count = taken + new, count - int(new.sum())
    return taken


def _deal(codes: np.ndarray, counts: np.ndarray, generator: np.random.Generator) -> Table:
    """Deal each label's samples in a random order, ``counts[i, k]`` of label k to client i, again once all are dealt."""
    owners, rows = [], []
    for label in np.flatnonzero(counts.sum(0)):
        dealt = np.repeat(np.arange(len(counts)), counts[:, label])
        owners.append(dealt)
        rows.append(np.resize(generator.permutation(np.flatnonzero(codes == label)), len(dealt)))
    order = generator.permutation(int(counts.sum()))
    held, found = (torch.from_numpy(np.concatenate(parts)[order]) for parts in (owners, rows))
    return Table.of(held, found, len(counts))
