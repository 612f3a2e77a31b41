"""Clusters by name: ``dask:ADDRESS``, ``ray`` and ``ray:ADDRESS``. Neither package is needed for anything else."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from counterpoise.comparisons.abroad import Executor
from counterpoise.comparisons.placement import cpu_workers, device_of
from counterpoise.comparisons.plan import Piece
from counterpoise.errors import CounterpoiseError
from counterpoise.texts import counted

__all__ = ["Cluster", "opened"]

_SECONDS = 10
"""How long a cluster may take to answer."""


class Cluster(NamedTuple):
    """A cluster that was reached."""

    executor: Executor
    workers: int
    """How many lists of pieces it does at once, as far as it can be known now."""
    sentence: str
    sharing: int
    """How many of these lists share the memory of one machine."""


def opened(on: str, pieces: Sequence[Piece]) -> contextlib.AbstractContextManager[Cluster]:
    """Reach a cluster to run these pieces."""
    kind, _, address = on.partition(":")
    if kind == "dask" and address:
        return _dask(address)
    if kind == "ray":
        return _ray(address, pieces)
    raise CounterpoiseError(f"--on takes dask:ADDRESS, ray or ray:ADDRESS, not {on!r}.")


@contextlib.contextmanager
def _dask(address: str) -> Iterator[Cluster]:
    distributed = _imported("distributed", "dask")
    how = "Start a scheduler with `dask scheduler`, or correct the address."
    if address.endswith(".json"):
        try:
            address = json.loads(Path(address).read_text(encoding="utf-8"))["address"]
        except (OSError, ValueError, KeyError, TypeError):
            raise CounterpoiseError(f"--on: {address} is not a file that a Dask scheduler wrote. {how}") from None
    _reach("Dask scheduler", address, how)
    try:
        client = distributed.Client(address, timeout=_SECONDS)
    except (OSError, ValueError) as error:
        raise CounterpoiseError(f"--on: no Dask scheduler answers at {address}: {error}. {how}") from None
    with client:
        hosts: Counter[str] = Counter()
        for worker in client.scheduler_info(n_workers=-1)["workers"].values():
            hosts[worker["host"]] += worker["nthreads"]
        workers = hosts.total()
        sentence = f"The runs train on the Dask cluster at {address}, which has {counted(workers, 'worker')} now."
        yield Cluster(client.get_executor(pure=False), workers, sentence, max(hosts.values(), default=1))


@contextlib.contextmanager
def _ray(address: str, pieces: Sequence[Piece]) -> Iterator[Cluster]:
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # otherwise Ray warns that this will be the default
    ray = _imported("ray", "ray")
    how = "Start a cluster with `ray start --head`, or correct the address; --on ray alone uses this machine."
    if address:
        _reach("Ray cluster", address, how)
    try:
        ray.init(address or None, log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError) as error:
        raise CounterpoiseError(
            f"--on: no Ray cluster answers at {address or 'this machine'}: {error}. {how}"
        ) from None
    try:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        share, workers = _shares(pieces, cores, gpus)
        where = f"at {address}" if address else f"of {len(cores)} machine{'s' if len(cores) > 1 else ''}"
        what = f"{workers} GPU{'s' if workers > 1 else ''}" if share is None else f"{sum(cores)} cores"
        sharing = 1 if share is None else max(1, max(cores, default=1) // share)  # a list on a GPU has it alone
        sentence = f"The runs train on the Ray cluster {where}, with {what}."
        yield Cluster(_Ray(ray, share or 1, gpus), workers, sentence, sharing)
    finally:
        ray.shutdown()


def _shares(pieces: Sequence[Piece], cores: Sequence[int], gpus: int) -> tuple[int | None, int]:
    """How many cores a list of pieces takes, and how many lists run at once; `cores` are those of each machine.

    If the pieces train on GPUs, each list takes one GPU, and the first number is None.
    """
    if gpus and any(device_of(piece) != "cpu" for piece in pieces):
        return None, gpus
    fewest = min((count for count in cores if count), default=1)
    share = max(1, fewest // cpu_workers(pieces, fewest))
    return share, max(1, sum(count // share for count in cores))


class _Ray:
    """Ray as an executor. A list of pieces takes a GPU if the cluster has some, otherwise its share of the cores."""

    def __init__(self, ray: Any, cores: int, gpus: int) -> None:
        self._ray, self._cores, self._gpus = ray, cores, gpus

    def submit(self, fn: Callable[..., Any], order: Mapping[str, Any], /) -> Any:
        gpu = bool(self._gpus) and order["device"] != "cpu"
        # No retries: a lost worker is reported, and the same command tries again.
        needs = {"num_cpus": 1 if gpu else self._cores, "num_gpus": int(gpu), "max_retries": 0}
        return self._ray.remote(fn).options(**needs).remote(order).future()


def _imported(package: str, extra: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise CounterpoiseError(
            f"--on {extra} needs the package {package}. Install it with: pip install 'counterpoise[{extra}]'"
        ) from None


def _reach(what: str, address: str, how: str) -> None:
    """Fail if nothing answers at an address. Ray would wait for minutes and then end the process."""
    found = re.fullmatch(r"(?:\w+://)?\[?([^\s/]+?)\]?:(\d{1,5})/?", address)
    if found is None:
        raise CounterpoiseError(f"--on: the address of a {what} is HOST:PORT, not {address!r}.")
    try:
        socket.create_connection((found[1], int(found[2])), timeout=_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise CounterpoiseError(f"--on: no {what} answers at {address}: {error}. {how}") from None
