"""`load` deals a data set, named or from a file, to clients."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.errors import CounterpoiseError, brief, like_named, takes_only_its_options, unknown
from counterpoise.federation.bringing import Columns, bring
from counterpoise.federation.bringing.facts import facts_of
from counterpoise.federation.bringing.samples import refuse_one_hot
from counterpoise.federation.catalogue import DATASETS, place
from counterpoise.federation.dealing import is_natural
from counterpoise.federation.features import Skew, within
from counterpoise.federation.federation import Federation
from counterpoise.federation.flower import load_splits
from counterpoise.federation.partition import Partition
from counterpoise.federation.readers import Raw, read_arrays
from counterpoise.federation.scaling import Scaling, choose_scaling
from counterpoise.federation.sources import data_folder
from counterpoise.federation.structure import by_part, is_structured
from counterpoise.randomness import check_seed, purpose, sample

__all__ = ["check_known", "load", "read", "stamp"]

FLOWER = "flwr:"


@takes_only_its_options(
    {
        "clients": "partition=cp.iid(clients=10)",
        "alpha": "partition=cp.dirichlet(alpha=0.5, clients=10)",
        "partition": "Say how to deal the data, partition=cp.iid(clients=10). For one data set per client use "
        "cp.Federation.from_datasets({'north': one, 'south': other}).",
    }
)
def load(
    name: str | os.PathLike[str],
    *,
    partition: Partition,
    test: float | None = None,
    heldout: float = 0.2,
    probe: int | str = 0,
    proxy: int = 0,
    seed: int = 0,
    scaling: Scaling | None = None,
    features: Skew | None = None,
    pool: bool = False,
    skewed_test: bool = False,
    samples: int | None = None,
    columns: Columns | None = None,
    resize: int | Sequence[int] | None = None,
) -> Federation:
    """Deal a data set to clients: a named one, a file or folder of your own, or ``flwr:NAME``.

    A file is .npz, .csv, .tsv or .parquet. A folder holds .npy files, tables, or pictures in one folder for each class.

    A named data set is read from the local data folder, or fetched into it first. `scaling` turns bytes
    into numbers from 0 to 1 (``"unit"``), from -1 to 1 (``"centred"``), or with mean 0 and standard
    deviation 1 in each channel of the training part (``"standard"``) or over each picture
    (``"per-picture"``). ``{"mean": [...], "deviation": [...]}`` names both for each channel, for pixels
    from 0 to 1. `pool` deals the test set to clients too, so that models are measured only on what these hold
    out. `test` is the fraction of each client's data that becomes the server's test set, for data that have
    none. `samples` keeps that many training samples, drawn at random. `columns` says which columns of a table
    or a ``flwr:`` set are ``inputs``, ``targets`` and ``identity``. `resize` brings pictures of a folder to one
    size: a number, or height and width. The other settings are those of `Federation.from_arrays`.

    >>> import counterpoise as cp
    >>> cp.load("digits", partition=cp.dirichlet(0.5, clients=10), probe=1)
    Federation(10 clients, 1428 samples of shape (1, 8, 8) in 10 classes, 287 of them held out; test 359, probe 10)
    """
    if not isinstance(partition, Partition):
        raise CounterpoiseError("partition must be a recipe such as cp.dirichlet(0.5, clients=100).")
    check_seed(seed)
    name = os.fspath(name) if isinstance(name, os.PathLike) else name
    raw = _chosen(read(name, seed, columns, resize, is_natural(partition)), name, partition, pool, samples, seed)
    scale, shift = choose_scaling(raw.x_train, scaling, name, raw.peak, raw.scaling)
    federation = Federation.from_arrays(
        raw.x_train,
        raw.y_train,
        partition=partition,
        test=_test(raw, test, name),
        heldout=heldout,
        probe=probe,
        proxy=proxy,
        seed=seed,
        scale=scale,
        shift=shift,
        identities=raw.identity_train,
        features=None if features is None else within(features, raw.peak),
        class_names=raw.class_names,
        skewed_test=skewed_test,
    )
    if scaling == "per-picture":
        federation = federation.per_picture()
    source: dict[str, Any] = {
        "name": name,
        "partition": partition.spec.plain(),
        "heldout": heldout,
        "probe": probe,
        "proxy": proxy,
        "seed": seed,
        "scaling": scaling if scaling is None or isinstance(scaling, str) else {k: [*v] for k, v in scaling.items()},
        "features": None if features is None else features.spec.plain(),  # type: ignore[attr-defined]
        "test": test,
        "pool": pool or None,
        "skewed_test": skewed_test or None,
        "samples": samples,
        "columns": None if columns is None else {k: v if isinstance(v, str) else list(v) for k, v in columns.items()},
        "resize": resize if resize is None or isinstance(resize, int) else list(resize),
    }
    object.__setattr__(federation, "source", {key: value for key, value in source.items() if value is not None})
    return federation


def _test(raw: Raw, fraction: Any, name: str) -> Any:
    """The test set: the data's own, or a fraction of clients' samples."""
    if fraction is None:
        return None if raw.x_test is None or raw.y_test is None else (raw.x_test, raw.y_test)
    if isinstance(fraction, bool) or not isinstance(fraction, int | float):
        raise CounterpoiseError(
            f"test must be a fraction of clients' samples, such as 0.2, not {brief(fraction)}. For a test set of your own "
            "use Federation.from_datasets(data, partition=..., test=...)."
        )
    if raw.x_test is not None:
        raise CounterpoiseError(
            f"{name} has a test set, and test={fraction!r} asks for another. Leave test out, or join both first: pool=True."
        )
    return fraction


def read(
    name: str,
    seed: int = 0,
    columns: Columns | None = None,
    resize: int | Sequence[int] | None = None,
    natural: bool = False,
) -> Raw:
    """The arrays of a data set, before they are dealt to clients, who may be its own identities (`natural`)."""
    if not isinstance(name, str):
        raise CounterpoiseError(
            f"load takes the name of a data set or a path, not {type(name).__name__}. For data of your own use "
            "cp.Federation.from_datasets(data, partition=...)."
        )
    if name.startswith(FLOWER):
        return _brought(*load_splits(name.removeprefix(FLOWER)), columns, resize, natural)
    options = json.dumps([columns and dict(columns), resize, natural], default=list)
    return _arrays(name, options, stamp(name), seed if name in DATASETS and not DATASETS[name].files else 0)


@functools.lru_cache(maxsize=1)
def _arrays(name: str, options: str, stamp: object, seed: int) -> Raw:
    """Keep the last data set in memory, so that compared runs read it once."""
    columns, resize, natural = json.loads(options)
    path = Path(name).expanduser()
    named, arrays = name in DATASETS, path.suffix == ".npz" or (os.path.isdir(path) and any(path.glob("*.npy")))
    if not named and not arrays and not os.path.exists(path):
        raise _missing(name, path)
    for what, given, fits in (
        ("columns", columns, "tables, pictures and flwr: data sets"),
        ("resize", resize, "pictures"),
    ):
        if given is not None and (named or arrays):
            raise CounterpoiseError(f"{what} is for {fits}; the arrays of {name} are taken as they are.")
    if named:
        return DATASETS[name].arrays(seed)
    if not arrays:
        return _brought(path, None, columns, resize, natural)
    raw = read_arrays(path)
    refuse_one_hot(raw.y_train, name)
    return raw


def _missing(name: str, path: Path) -> CounterpoiseError:
    """The error for what is neither a data set nor a path; files beside it are suggested unless a data set is near."""
    if path.name == name and not path.suffix and get_close_matches(name, DATASETS):
        return unknown("data set", name, DATASETS)
    where = f"and no such file or folder ({os.path.abspath(path)})"
    return unknown("data set", name, DATASETS, where, like_named(path, any_kind=True))


def check_known(name: str) -> None:
    """Refuse a name that is neither a data set's nor a path's. A path may lead to a file that only a worker sees."""
    path = Path(name).expanduser()
    is_path = path.suffix or path.name != name or name.startswith(FLOWER) or os.path.exists(path)
    if name not in DATASETS and not is_path:
        raise _missing(name, path)


def _brought(data: Any, test: Any, columns: Any, resize: Any, natural: bool) -> Raw:
    """The arrays of a data set in any of the forms that `Federation.from_datasets` takes."""
    found = bring(data, True, test, columns, resize, natural=natural)
    (inputs, targets, names, _, _, who), count = found.kept, found.dealt
    if is_structured(targets):
        raise CounterpoiseError("load takes targets in one piece; Federation.from_datasets takes them in parts.")
    raw = Raw(_rows(inputs, slice(count)), targets[:count], identity_train=who, class_names=names)
    if count == len(targets):
        return raw
    return raw._replace(x_test=_rows(inputs, slice(count, None)), y_test=targets[count:])


def _rows(inputs: Any, rows: slice | np.ndarray) -> Any:
    """Some samples of inputs, which may have parts."""
    return by_part(lambda array: array[rows], inputs)


def stamp(name: str) -> tuple[object, ...]:
    """Where a data set's files lie and when they were written; a different stamp means that they must be read again."""
    found = place(DATASETS[name]) if name in DATASETS else Path(name).expanduser()
    return str(data_folder()), "" if found is None or not os.path.exists(found) else facts_of([found])


def _identities(name: str) -> np.ndarray | None:
    dataset = DATASETS.get(name)
    return None if dataset is None or dataset.identities is None else dataset.identities(data_folder())


def _chosen(raw: Raw, name: str, partition: Partition, pool: bool, samples: int | None, seed: int) -> Raw:
    """The samples to deal, with the identities that the partition asks for."""
    if pool:
        raw = _pooled(raw, name, partition)
    if partition.column == "identity" and raw.identity_train is None:
        raw = raw._replace(identity_train=_identities(name))
    return raw if samples is None else _some(raw, samples, seed)


def _pooled(raw: Raw, name: str, partition: Partition) -> Raw:
    """Training and test samples as one set."""
    if raw.x_test is None or raw.y_test is None:
        raise CounterpoiseError(f"pool deals the test set to clients too, but {name} has none. Leave pool out.")
    if raw.identity_train is not None or partition.column == "identity":
        raise CounterpoiseError(
            f"pool cannot be used with the identities of {name}: its test samples do not say whose they are."
        )
    x, y = (by_part(_joined, *pair) for pair in ((raw.x_train, raw.x_test), (raw.y_train, raw.y_test)))
    return raw._replace(x_train=x, y_train=y, x_test=None, y_test=None)


def _joined(*arrays: np.ndarray) -> np.ndarray:
    return np.concatenate(arrays)


def _some(raw: Raw, samples: int, seed: int) -> Raw:
    there = len(raw.y_train)
    if type(samples) is not int or not 1 <= samples <= there:
        raise CounterpoiseError(f"samples must be a whole number from 1 to the {there} there are, not {samples!r}.")
    rows = sample(there, samples, seed, purpose("samples")).sort().values.numpy()
    who = raw.identity_train
    return raw._replace(
        x_train=_rows(raw.x_train, rows), y_train=raw.y_train[rows], identity_train=None if who is None else who[rows]
    )
