"""Whose each data set is, and all of them as arrays."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from counterpoise.errors import CounterpoiseError, brief
from counterpoise.federation.assignment import Table
from counterpoise.federation.bringing.forms import FORMS, check_columns, is_arrays, recognise
from counterpoise.federation.bringing.gathering import gather
from counterpoise.federation.bringing.samples import Form
from counterpoise.federation.bringing.source import Columns, Source
from counterpoise.federation.naming import Names

__all__ = ["Brought", "bring"]

log = logging.getLogger(__name__)


class Brought(NamedTuple):
    """Samples as arrays: what clients train on, then the test samples that they bring, then the server's."""

    inputs: np.ndarray
    targets: np.ndarray
    class_names: Names | None
    client_names: Names | None
    train: list[int]
    """How many samples each client trains on."""
    own: list[int]
    """How many test samples each client brings."""
    identities: Any

    @property
    def dealt(self) -> int:
        """How many samples are the clients'; the rest is the server's test set."""
        return sum(self.train) + sum(self.own)

    def rows(self) -> list[torch.Tensor]:
        """The rows that each client trains on."""
        return list(torch.split(torch.arange(sum(self.train)), self.train))

    def tests(self) -> Table | None:
        """Which rows are whose test samples; None if nobody brings any."""
        if not any(self.own):
            return None
        return Table(torch.tensor([0, *accumulate(self.own)]), torch.arange(sum(self.train), self.dealt))


def bring(data: Any, deal: bool, test: Any, columns: Columns | None, resize: Any) -> Brought:
    """Read data sets: one for each client, or if they are to be dealt (`deal`), one for all."""
    columns, form = check_columns(columns), Form.of(resize)
    names, given = ([None], [data]) if deal else _each(data)
    if deal and _is_many(data):
        raise CounterpoiseError(
            f"A partition deals one data set, but data holds {len(data)}, one for each client. Leave out the partition, or "
            "join them with torch.utils.data.ConcatDataset."
        )
    places = ["the data" if deal else f"client {i if name is None else name}" for i, name in enumerate(names)]
    _tell_loaders([*given, test])
    pairs = [recognise(one, where, columns) for one, where in zip(given, places, strict=True)]
    server = None if test is None else _alone(test, columns)
    if deal and pairs[0][1] is not None:
        if server is not None:
            raise CounterpoiseError("The data bring a test part, and test= gives another. Leave one of them out.")
        server, pairs = replace(pairs[0][1], where="the test set"), [(pairs[0][0], None)]
    train, own = [one for one, _ in pairs], [two for _, two in pairs]
    sources = [*train, *(one for one in own if one is not None), *([] if server is None else [server])]
    inputs, targets, class_names = gather(sources, form)
    return Brought(
        inputs,
        targets,
        class_names,
        None if None in names else tuple(map(str, names)),
        [one.count for one in train],
        [0 if one is None else one.count for one in own],
        train[0].identities if deal else None,
    )


def _alone(test: Any, columns: Columns) -> Source:
    source, more = recognise(test, "the test set", columns)
    if more is not None:
        raise CounterpoiseError("test is one set, such as (x, y) or a Dataset; this one has a test part of its own.")
    return source


def _is_many(data: Any) -> bool:
    """Whether it is a data set for each client, rather than one data set."""
    return isinstance(data, Mapping | list) or (isinstance(data, tuple) and not is_arrays(data))


def _each(data: Any) -> tuple[list[str | None], list[Any]]:
    """Every client's name, if it has one, and its data set."""
    if isinstance(data, Iterator):
        data = list(data)
    if not _is_many(data):
        if isinstance(data, int | float | None):
            raise CounterpoiseError(f"data must be data sets, not {brief(data)}. Give each client {FORMS}.")
        raise CounterpoiseError(
            "This is one data set. Say how to deal it, partition=cp.iid(clients=10), or give one for each client: a list, "
            "or a dictionary of names and data sets."
        )
    if not len(data):
        raise CounterpoiseError("A federation needs at least one client.")
    if not isinstance(data, Mapping):
        return [None] * len(data), list(data)
    names = [str(name) for name in data]
    if len({*names}) < len(names):
        raise CounterpoiseError(f"Two clients are called {next(n for n in names if names.count(n) > 1)!r}.")
    return list(names), list(data.values())


def _tell_loaders(given: list[Any]) -> None:
    loaders = [one for one in given if isinstance(one, DataLoader)]
    if loaders:
        log.warning(
            "Of a DataLoader only its data set is used. Its batch size, order and collate_fn are not; say "
            "cp.Local(batch=%d).",
            loaders[0].batch_size or 32,
        )
