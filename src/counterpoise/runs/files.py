"""Writing that survives a kill and a full disk: a file is either the old one or the new one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from counterpoise.errors import CounterpoiseError
from counterpoise.texts import Malformed, parse_json
from counterpoise.texts import read_lines as read_text_lines

__all__ = ["Unwritten", "append_line", "push", "read_lines", "replace_file", "replace_text"]


class Unwritten(CounterpoiseError):
    """The disk is full or forbidden. What was kept before is whole."""


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Write beside the file, push it to the disk, then move it into place."""
    partial = path.with_name(path.name + ".partial")
    try:
        write(partial)
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise Unwritten(f"{path} could not be written: {_why(error)}. What was there before is untouched.") from error


def replace_text(path: Path, text: str) -> None:
    """Replace a text file."""

    def write(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8")

    replace_file(path, write)


def append_line(path: Path, value: Any) -> None:
    """One line of JSON at the end of a file."""
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n")
    except OSError as error:
        raise Unwritten(f"{path} could not be written: {_why(error)}.") from error


def push(path: Path) -> None:
    """Push what was appended to the disk."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def read_lines(path: Path) -> Iterator[Any]:
    """The lines of a file; a torn one at the end is passed over."""
    torn = 0
    try:
        for number, line in enumerate(read_text_lines(path), 1):
            if torn:
                raise CounterpoiseError(f"{path}: line {torn} is not JSON.")
            try:
                value = parse_json(line, f"{path}: line {number}")
            except Malformed:
                torn = number
            else:
                yield value
    except FileNotFoundError:
        raise CounterpoiseError(f"{path} is missing.") from None
