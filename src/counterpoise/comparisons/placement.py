"""On which device each worker of a comparison runs: one worker for each GPU, or as many as the cores allow on a CPU.

No result depends on it, beyond the rounding of different devices and batches.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from counterpoise.comparisons.plan import Piece

__all__ = ["Place", "Seats", "cpu_workers", "device_of", "gpu_names", "seats_for"]

_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Place(NamedTuple):
    """Where a worker runs."""

    gpu: int | None = None
    """Which of the GPUs that this process may use; None is the CPU."""
    alone: bool = False
    """Whether the worker sees only this GPU, as ``cuda``. Otherwise it sees all, and ``cuda:1`` is the second of them."""

    def environment(self, names: Sequence[str]) -> dict[str, str]:
        """What this place changes in the worker's environment. `names` are the GPUs' names (`gpu_names`)."""
        return {_VISIBLE: names[self.gpu]} if self.alone and self.gpu is not None else {}


class Seats(NamedTuple):
    """How many workers there may be, and where."""

    gpus: int
    """The GPUs of this machine that this process may use."""
    used: tuple[int, ...]
    """Those of them on which some piece can run."""
    each: int
    """Workers on each of these."""
    cpus: int
    """Workers on the CPU."""
    most: int
    """Workers in all."""

    def free(self, device: str, taken: Sequence[int | None]) -> Place | None:
        """A place for pieces with this device, given the GPU of each busy worker (None is the CPU).

        Pieces that name no GPU get the one with the fewest workers.
        """
        if len(taken) >= self.most:
            return None
        if not _on_gpu(device, self.gpus):
            return Place() if taken.count(None) < self.cpus else None
        named = _named(device)
        gpu = min(range(self.gpus), key=taken.count) if named is None else named
        return Place(gpu, alone=named is None and self.gpus > 1) if taken.count(gpu) < self.each else None

    def sharing(self, place: Place) -> int:
        """How many workers share the memory at a place."""
        return max(1, self.cpus if place.gpu is None else self.each)

    def sentence(self) -> str:
        """Which GPUs are used; empty if there is nothing to say."""
        count = min(len(self.used), self.most)
        workers = "one worker" if self.each == 1 else f"up to {self.each} workers"
        return f"The runs train on {count} GPUs, with {workers} on each." if count > 1 else ""


def seats_for(pieces: Sequence[Piece], gpus: int, jobs: int | None = None) -> Seats:
    """The workers for some pieces on a machine with this many GPUs. `jobs` is how many the user asked for."""
    devices = [device_of(piece) for piece in pieces]
    on_gpus = [device for device in devices if _on_gpu(device, gpus)]
    named = {index for device in on_gpus if (index := _named(device)) is not None}
    free = any(_named(device) is None for device in on_gpus)
    used = tuple(range(gpus)) if free else tuple(sorted(named))
    on_cpu = [piece for piece, device in zip(pieces, devices, strict=True) if not _on_gpu(device, gpus)]
    if jobs:
        return Seats(gpus, used, -(-jobs // max(len(used), 1)), jobs, jobs)
    cpus = cpu_workers(on_cpu) if on_cpu else 0
    return Seats(gpus, used, 1, cpus, max(1, min(len(used), len(on_gpus)) + cpus))


def device_of(piece: Piece) -> str:
    """The device that a piece asks for: auto, cpu, cuda, cuda:1, ..."""
    return str(piece.values.get("engine", {}).get("device", "auto"))


def gpu_names(environment: Mapping[str, str], count: int) -> list[str]:
    """What to write into CUDA_VISIBLE_DEVICES for each of the `count` GPUs that torch finds in this environment.

    >>> gpu_names({}, 2), gpu_names({"CUDA_VISIBLE_DEVICES": "3, GPU-5ab"}, 2)
    (['0', '1'], ['3', 'GPU-5ab'])
    """
    given = environment.get(_VISIBLE)
    names = [str(number) for number in range(count)] if given is None else [name.strip() for name in given.split(",")]
    return names[:count]


def cpu_workers(pieces: Sequence[Piece], cores: int | None = None) -> int:
    """How many workers a CPU takes at once: as many as give two threads per core.

    This factor is a choice, not a measured optimum.
    """
    most = 1
    if cores is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for piece in pieces:
        engine, cohort = piece.values.get("engine", {}), piece.values.get("cohort")
        threads = min(engine.get("threads") or cores, cohort if type(cohort) is int else cores)
        most = max(most, 2 * cores // max(threads, 1))
    return min(most, cores, max(len(pieces), 1))


def _named(device: str) -> int | None:
    """The number of the GPU that a device names."""
    found = re.fullmatch(r"cuda:(\d+)", device)
    return int(found[1]) if found else None


def _on_gpu(device: str, gpus: int) -> bool:
    """Whether pieces with this device train on a GPU. Those that ask for one that is not there fail on the CPU."""
    named = _named(device)
    return gpus > 0 and device in ("auto", "cuda") if named is None else named < gpus
