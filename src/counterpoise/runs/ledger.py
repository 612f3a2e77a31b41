"""A file with a header line that holds its schema, then one line of JSON per round; and the digest of its content.

A checkpoint keeps the digest of the lines it relies on, so that even one changed digit is noticed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from counterpoise.errors import CounterpoiseError
from counterpoise.runs.files import append_bytes, open_plain, push, replace_bytes, replace_file
from counterpoise.texts import Malformed, parse_json, read_lines

__all__ = ["SCHEMA", "Ledger", "digest_of", "is_empty"]

SCHEMA = 1


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n"


_HEADER = _encoded({"schema": SCHEMA})
_EMPTY = (b"", _HEADER, _encoded({"schema": SCHEMA, "checkpoint": 0}))  # earlier versions wrote the last form


def is_empty(path: Path) -> bool:
    """Whether a run began this file and wrote no round, so that nothing is lost if it is replaced."""
    with _opened(path) as file:
        return file.read(100) in _EMPTY


class Ledger:
    """One such file. The digest is updated with each line, so that a save need not read the file again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        """The digest of all lines that this process has read from the file or added to it."""
        return self._digest.hexdigest()

    def begin(self) -> None:
        """Write the file with its header alone."""
        replace_bytes(self.path, _HEADER)
        self._digest = hashlib.sha256(_HEADER)

    def append(self, line: Any) -> None:
        """Add a round."""
        content = _encoded(line)
        append_bytes(self.path, content)
        self._digest.update(content)

    def push(self) -> None:
        """Flush the added lines to the disk."""
        push(self.path)

    def cut(self, rounds: int) -> None:
        """Drop all lines after the first `rounds` rounds. A file without such lines is not touched, so it keeps its date."""
        digest, whole = hashlib.sha256(), 0
        for line in _first(self.path, rounds):
            digest.update(line)
            whole += len(line)
        self._digest = digest
        there = self.path.stat()
        if whole == there.st_size and there.st_nlink == 1:  # a file with a second name is replaced, never appended to
            return

        def write(partial: Path) -> None:
            with os.fdopen(open_plain(partial, os.O_WRONLY), "wb") as file:
                file.writelines(_first(self.path, rounds))

        replace_file(self.path, write)

    def check(self, rounds: int, digest: str) -> None:
        """Refuse a file if its first `rounds` rounds are not the ones that were written."""
        if digest_of(self.path, rounds) != digest:
            raise CounterpoiseError(
                f"{self.path} is not what was written: something in its rounds 1 to {rounds} was changed or is "
                "missing. Put back a copy of it, or start the run again in another folder."
            )

    def rounds(self) -> Iterator[Any]:
        """Every round. An incomplete last line is skipped."""
        lines = self._lines()
        header = next(lines, None)
        if not isinstance(header, dict) or header.get("schema") != SCHEMA:
            raise CounterpoiseError(
                f"{self.path} does not begin with schema {SCHEMA}; it was not written by this version of counterpoise."
            )
        yield from lines

    def _lines(self) -> Iterator[Any]:
        torn = 0
        try:
            for number, line in enumerate(read_lines(self.path), 1):
                if torn:
                    raise CounterpoiseError(f"{self.path}: line {torn} is not JSON.")
                try:
                    value = parse_json(line, f"{self.path}: line {number}")
                except Malformed:
                    torn = number
                else:
                    yield value
        except FileNotFoundError:
            raise CounterpoiseError(f"{self.path} is missing.") from None


def digest_of(path: Path, rounds: int) -> str:
    """The digest of a file's first line and its first `rounds` rounds."""
    digest = hashlib.sha256()
    for line in _first(path, rounds):
        digest.update(line)
    return digest.hexdigest()


def _first(path: Path, rounds: int) -> Iterator[bytes]:
    with _opened(path) as file:
        yield from itertools.islice(file, rounds + 1)


def _opened(path: Path) -> BinaryIO:
    return os.fdopen(open_plain(path, os.O_RDONLY), "rb")
