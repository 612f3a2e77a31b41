"""Find out whose each data set is, and read all of them into arrays."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from counterpoise.errors import CounterpoiseError, brief
from counterpoise.federation.assignment import Table
from counterpoise.federation.bringing.cache import Kept, Shelf, shelf
from counterpoise.federation.bringing.forms import FORMS, check_columns, is_arrays, is_pair, known_by, recognise
from counterpoise.federation.bringing.gathering import gather
from counterpoise.federation.bringing.hub import is_hub, is_splits, partitions
from counterpoise.federation.bringing.samples import Form
from counterpoise.federation.bringing.source import Columns, Source
from counterpoise.federation.naming import Names
from counterpoise.federation.structure import by_part

__all__ = ["Brought", "bring"]

log = logging.getLogger(__name__)


class Brought(NamedTuple):
    """Data sets that were read."""

    kept: Kept
    """Samples as arrays: what clients train on, then the test samples that they bring, then the server's."""
    client_names: Names | None

    @property
    def dealt(self) -> int:
        """How many samples are the clients'; the rest is the server's test set."""
        return sum(self.kept.train) + sum(self.kept.own)

    def inputs(self) -> Any:
        """The inputs of all samples that clients train on or hold out."""
        return by_part(lambda array: array[: sum(self.kept.train)], self.kept.inputs)

    def rows(self) -> list[torch.Tensor]:
        """The rows that each client trains on."""
        return list(torch.split(torch.arange(sum(self.kept.train)), self.kept.train))

    def tests(self) -> Table | None:
        """Which rows are whose test samples; None if nobody brings any."""
        if not any(self.kept.own):
            return None
        return Table(torch.tensor([0, *accumulate(self.kept.own)]), torch.arange(sum(self.kept.train), self.dealt))


def bring(
    data: Any,
    deal: bool,
    test: Any,
    columns: Columns | None,
    resize: Any,
    cache: Any = None,
    classes: Any = None,
    natural: bool = False,
) -> Brought:
    """Read data sets: one for each client, or if they are to be dealt (`deal`), one for all.

    `natural` says that each client is one of the data's own identities.
    """
    columns, form, data = check_columns(columns), Form.of(resize), partitions(data) or data
    names, given = ([None], [data]) if deal else _each(data)
    if deal and _is_many(data) and not is_hub(data):
        raise CounterpoiseError(
            f"A partition deals one data set, but data holds {len(data)}, one for each client. Leave out the partition, or "
            "join them with torch.utils.data.ConcatDataset."
        )
    places = ["the data" if deal else f"client {i if name is None else name}" for i, name in enumerate(names)]
    _tell_loaders([*given, test])
    _tell_tests(given, places, test)
    way = Way(columns, form, deal, classes, natural)
    with shelf(cache, _facts([*given, test], way)) as place:
        kept = place.find() or place.keep(_read(given, places, test, way, place))
    return Brought(kept, None if None in names else tuple(map(str, names)))


class Way(NamedTuple):
    """How data sets are read."""

    columns: Columns
    form: Form
    deal: bool
    """Whether one data set is dealt, rather than one given for each client."""
    classes: Any
    """The names of all classes, if the user gives them."""
    natural: bool
    """Whether clients are the data's own identities."""


def _facts(given: list[Any], way: Way) -> Any:
    """Plain values that identify these data sets, read in this way; None if one of them may change unnoticed."""
    known = [known_by(one) for one in given if one is not None]
    settings = [dict(way.columns), way.form.size, way.deal, way.classes, given[-1] is None, way.natural]
    return None if None in known else [known, settings]


def _read(given: list[Any], places: list[str], test: Any, way: Way, place: Shelf) -> Kept:
    pairs = [recognise(one, where, way.columns, way.natural) for one, where in zip(given, places, strict=True)]
    server = None if test is None else _alone(test, way)
    if way.deal and pairs[0][1] is not None:
        if server is not None:
            raise CounterpoiseError("The data bring a test part, and test= gives another. Leave one of them out.")
        server, pairs = replace(pairs[0][1], where="the test set"), [(pairs[0][0], None)]
    train, own = [one for one, _ in pairs], [two for _, two in pairs]
    sources = [*train, *(one for one in own if one is not None), *([] if server is None else [server])]
    inputs, targets, class_names = gather(sources, way.form, place, way.classes)
    counts = [one.count for one in train], [0 if one is None else one.count for one in own]
    return Kept(inputs, targets, class_names, *counts, train[0].identities if way.deal else None)


def _alone(test: Any, way: Way) -> Source:
    source, more = recognise(test, "the test set", way.columns, way.natural)
    if more is not None:
        raise CounterpoiseError("test is one set, such as (x, y) or a Dataset; this one has a test part of its own.")
    return source


def _is_many(data: Any) -> bool:
    """Whether it is a data set for each client, rather than one data set."""
    if is_splits(data):
        return False
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


def _tell_tests(given: list[Any], places: list[str], test: Any) -> None:
    """Warn if the server's test set is also somebody's data."""
    if not isinstance(test, str | os.PathLike):
        return
    its = Path(test).expanduser().resolve()
    for one, where in zip(given, places, strict=True):
        mine = Path(one).expanduser().resolve() if isinstance(one, str | os.PathLike) else None
        if mine is not None and (mine == its or mine in its.parents or its in mine.parents):
            log.warning(
                "The test set %s is also data of %s, so models are tested on what they were trained on.", its, where
            )


def _tell_loaders(given: list[Any]) -> None:
    each = [one for one in given if not is_pair(one)] + [part for one in given if is_pair(one) for part in one]
    loaders = [one for one in each if isinstance(one, DataLoader)]
    if loaders:
        log.warning(
            "Of a DataLoader only its data set is used. Its batch size, order and collate_fn are not; say "
            "cp.Local(batch=%d).",
            loaders[0].batch_size or 32,
        )
