"""Keep on disk what took long to read, as arrays that the next call maps into memory without reading them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from counterpoise.errors import CounterpoiseError, brief
from counterpoise.federation.bringing.parts import apart, assembled
from counterpoise.federation.naming import Names
from counterpoise.federation.sources import data_folder
from counterpoise.memory import bytes_in_words, machine_memory
from counterpoise.texts import MOST_LINE, parse_json, read_text

__all__ = ["Kept", "Shelf", "shelf"]

log = logging.getLogger(__name__)

LARGE = 1 << 28
"""Arrays from this many bytes on are kept on disk, unless a user says otherwise."""
_VERSION = 3
"""Raise this if the same data would become other arrays than before."""
_ABANDONED = 86_400
"""A half-written folder is removed if nobody has written to it for this many seconds."""


class Kept(NamedTuple):
    """What is kept of data sets that were read."""

    inputs: Any
    targets: Any
    class_names: Names | None
    train: list[int]
    """How many samples each client trains on."""
    own: list[int]
    """How many test samples each client brings."""
    identities: np.ndarray | None


class _Memory:
    """Inputs in memory."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.array, self.filled = np.empty(shape, dtype), 0
        self.size = self.array.nbytes

    def add(self, block: np.ndarray) -> None:
        self.array[self.filled : self.filled + len(block)] = block
        self.filled += len(block)

    def done(self) -> np.ndarray:
        return self.array


class _File:
    """Inputs in a file, written in order and mapped at the end, so that a full disk is an error and not a crash."""

    def __init__(self, file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.file, self.shape, self.dtype = file, shape, dtype
        self.size = math.prod(shape) * dtype.itemsize
        head = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        npy.write_array_header_2_0(file, head)
        self.start = file.tell()

    def add(self, block: np.ndarray) -> None:
        self.file.write(np.ascontiguousarray(block).data)

    def done(self) -> np.ndarray:
        self.file.flush()
        # Copy-on-write: torch asks for writable memory, and the file stays as it is.
        mapped = np.memmap(self.file, self.dtype, "c", self.start, self.shape)
        self.file.close()
        return mapped


Store = _Memory | _File


class Shelf:
    """A place for the arrays of some data sets. Nothing half written is ever found there.

    `named` says that the user named the folder, so that small arrays are kept too.
    """

    def __init__(self, folder: Path | None, key: str | None, named: bool) -> None:
        self.folder, self.named = folder, named
        self.place = None if folder is None or key is None else folder / key
        self.part: Path | None = None
        self.files: list[IO[bytes]] = []

    def find(self) -> Kept | None:
        """What an earlier call kept."""
        if self.place is None or not self.place.is_dir():
            return None
        try:
            return _read(self.place)
        except (CounterpoiseError, OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s is damaged (%s); the data are read again.", self.place, error)
            shutil.rmtree(self.place, ignore_errors=True)
            return None

    def stores(self, parts: Mapping[Any, tuple[tuple[int, ...], np.dtype[Any]]]) -> dict[Any, Store]:
        """Where inputs go while they are read: for each of their parts, a place for an array of this shape and type."""
        size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in parts.values())
        most = machine_memory() or 2**36
        kept = self.place is not None and (self.named or size >= LARGE)
        if self.folder is None or not (kept or size > most // 4):
            return {key: _Memory(*form) for key, form in parts.items()}
        with self._explained(size):
            self.folder.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(self.folder).free > size + LARGE:
                self.files = self._open(kept, _names("inputs", parts))
                return {key: _File(f, *form) for (key, form), f in zip(parts.items(), self.files, strict=True)}
        if size > most // 2:
            raise CounterpoiseError(
                f"The samples take {bytes_in_words(size)}, for which neither {self.folder} nor the memory has room. Give "
                "cache= a folder that has, or take fewer or smaller samples."
            )
        log.warning("%s has no room for %s; the samples stay in memory.", self.folder, bytes_in_words(size))
        return {key: _Memory(*form) for key, form in parts.items()}

    def write(self, store: Store, block: np.ndarray) -> None:
        """Add samples to a store of this shelf."""
        with self._explained(store.size):
            store.add(block)

    def keep(self, found: Kept) -> Kept:
        """Move what was written to its final name, where the next call finds it."""
        if self.part is None or self.place is None:
            return found
        inputs, targets = apart(found.inputs), apart(found.targets)
        with self._explained(sum(array.nbytes for array in inputs.values())):
            for name, array in zip(_names("targets", targets), targets.values(), strict=True):
                np.save(self.part / name, array, allow_pickle=False)
            if found.identities is not None:
                np.save(self.part / "identities.npy", found.identities, allow_pickle=False)
            facts = {"class_names": found.class_names, "train": found.train, "own": found.own}
            facts |= {"inputs": [*inputs], "targets": [*targets]}
            (self.part / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
            with contextlib.suppress(OSError):  # another process was quicker
                self.part.rename(self.place)
        return found

    def clear(self) -> None:
        """Close what was not finished, and remove it."""
        for file in self.files:
            file.close()
        if self.part is not None:
            shutil.rmtree(self.part, ignore_errors=True)

    def _open(self, kept: bool, names: Sequence[str]) -> list[IO[bytes]]:
        """Files that are kept under these names, or files without a name, which vanish with the process."""
        assert self.folder is not None
        if not kept or self.place is None:
            return [tempfile.TemporaryFile(dir=self.folder) for _ in names]
        for old in self.folder.glob("*.part"):
            if time.time() - old.stat().st_mtime > _ABANDONED:
                shutil.rmtree(old, ignore_errors=True)
        self.part = Path(tempfile.mkdtemp(".part", f"{self.place.name}.", self.folder))
        return [(self.part / name).open("w+b") for name in names]

    @contextlib.contextmanager
    def _explained(self, size: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CounterpoiseError(
                f"{self.folder} cannot hold {bytes_in_words(size)} of samples: {error.strerror or error}. Give cache= "
                "another folder, or cache=False to keep them in memory."
            ) from None


@contextlib.contextmanager
def shelf(cache: object, facts: Any) -> Iterator[Shelf]:
    """A shelf for data sets that `facts`, plain values, identify. If that is None, nothing is kept of them."""
    if cache is not None and not isinstance(cache, bool | str | os.PathLike):
        raise CounterpoiseError(
            f"cache must be the path of a folder, or False to keep nothing on disk, not {brief(cache)}."
        )
    named = isinstance(cache, str | os.PathLike)
    folder = None if cache is False else Path(cache).expanduser() if named else data_folder() / "arrays"  # type: ignore[arg-type]
    key = None
    if facts is not None:
        key = hashlib.sha256(json.dumps([_VERSION, facts], sort_keys=True, default=list).encode()).hexdigest()[:32]
    elif named:
        log.warning("Nothing is kept in %s: data in memory do not say whether they have changed.", folder)
    place = Shelf(folder, key, named)
    try:
        yield place
    finally:
        place.clear()


def _names(what: str, keys: Collection[Any]) -> list[str]:
    """The files that hold inputs or targets: one, or one for each part."""
    return [f"{what}.npy"] if None in keys else [f"{what}-{number}.npy" for number in range(len(keys))]


def _read(place: Path) -> Kept:
    path = place / "facts.json"
    facts = parse_json(read_text(path, MOST_LINE), str(path))

    def load(name: str) -> np.ndarray:
        return np.load(place / name, mmap_mode="c", allow_pickle=False)  # type: ignore[no-any-return]

    inputs, targets = (
        {key: load(name) for key, name in zip(facts[what], _names(what, facts[what]), strict=True)}
        for what in ("inputs", "targets")
    )
    names = facts["class_names"]
    found = Kept(
        assembled(inputs),
        assembled({key: np.array(array) for key, array in targets.items()}),
        None if names is None else tuple(map(str, names)),
        [int(count) for count in facts["train"]],
        [int(count) for count in facts["own"]],
        load("identities.npy") if (place / "identities.npy").exists() else None,
    )
    counts = {len(array) for array in (*inputs.values(), *targets.values())}
    if len(counts) > 1 or min(counts) < sum(found.train) + sum(found.own):
        raise ValueError("its arrays do not belong together")
    return found
