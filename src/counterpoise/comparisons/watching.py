"""The rounds of a run that another process writes, read from its folder as they come."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.runs.contents import CLIENTS, METRICS
from counterpoise.runs.files import open_plain
from counterpoise.runs.kept import record
from counterpoise.texts import parse_json

__all__ = ["Watch"]


class Watch:
    """Reads a run's rounds as its folder grows. A folder that does not exist yet has no rounds."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._tails = folder, {name: _Tail(folder / name) for name in (METRICS, CLIENTS)}
        self._lines: dict[str, dict[int, Any]] = {METRICS: {}, CLIENTS: {}}
        self.last = 0
        """The last round that was read."""

    def rounds(self, until: float = inf) -> Iterator[RoundRecord]:
        """The rounds that were written since the last call, up to `until`, as far as both files have them."""
        for name, tail in self._tails.items():
            self._lines[name] |= {line["round"]: line for line in tail.lines() if "round" in line}
        metrics, clients = self._lines[METRICS], self._lines[CLIENTS]
        for number in sorted(number for number in metrics.keys() & clients.keys() if number <= until):
            self.last = number
            yield record(metrics.pop(number), clients.pop(number), str(self._folder))


class _Tail:
    """The complete lines that are added to a file. A file that was replaced is read from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path, self._file, self._read = path, 0, 0

    def lines(self) -> Iterator[dict[str, Any]]:
        try:
            handle = open_plain(self._path, os.O_RDONLY)
        except OSError:
            return
        with os.fdopen(handle, "rb") as file:
            there = os.fstat(handle)
            if there.st_ino != self._file or there.st_size < self._read:
                self._file, self._read = there.st_ino, 0
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                yield parse_json(line.decode(), str(self._path))
