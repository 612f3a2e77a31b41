"""Text that anybody may have written: read up to a limit, parsed into sane values, shown without control characters."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from counterpoise.errors import CounterpoiseError

__all__ = [
    "MOST_BYTES",
    "MOST_LINE",
    "Malformed",
    "clean",
    "counted",
    "elided",
    "parse_json",
    "parse_toml",
    "percent",
    "read_lines",
    "read_text",
]

MOST_BYTES = 8 * 2**20
"""The largest configuration, plan, index or similar file that is read whole: 8 MiB."""
MOST_LINE = 64 * 2**20
"""The longest line of a file that is read line by line: 64 MiB. A round of a million clients stays below it."""
_DEEPEST = 40
"""How deep tables and lists may be nested."""
_LARGEST = 2**63
"""TOML's whole numbers have 64 bits."""


class Malformed(CounterpoiseError):
    """A text that does not follow its format's grammar."""


def elided(text: str, most: int = 44) -> str:
    """Long text without its middle, because settings differ at their ends.

    >>> elided("fedprox(local.optimizer.lr=0.05, mu=0.1)", 20)
    'fedprox(lo…, mu=0.1)'
    """
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - (most - 1) // 2 :]}"


def clean(text: str) -> str:
    r"""The text, with characters escaped that could control a terminal or cannot be encoded.

    Line breaks and tabs stay. Characters that change the direction of writing are escaped too: they can make one name
    look like another.

    >>> clean("red \x1b[31m")
    'red \\x1b[31m'
    """
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(c if c in "\n\t" or not _steers(c) else c.encode("unicode_escape").decode() for c in text)


def _steers(character: str) -> bool:
    """Whether it is a control character, a lone surrogate, a line or paragraph separator, or a direction mark."""
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in _DIRECTIONS


_DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """A whole file as text. FileNotFoundError and NotADirectoryError pass: the caller reports a missing file."""
    try:
        with _opened(path) as file:
            raw = file.read(most + 1)
        if len(raw) > most:
            raise CounterpoiseError(
                f"{path} is larger than the {most} bytes that such a file may have; it was not written by counterpoise."
            )
        return raw.decode()
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise CounterpoiseError(f"{path} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise CounterpoiseError(f"{path} cannot be read: it is not UTF-8 text.") from None


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file without their line breaks, one in memory at a time."""
    try:
        with _opened(path) as file:
            while raw := file.readline(MOST_LINE + 1):
                if len(raw) > MOST_LINE:
                    raise CounterpoiseError(
                        f"{path} holds a line of more than {MOST_LINE} bytes; it was not written by counterpoise."
                    )
                yield raw.decode().rstrip("\r\n")
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise CounterpoiseError(f"{path} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise CounterpoiseError(f"{path} is damaged and cannot be read: it is not UTF-8 text.") from None


def _opened(path: Path) -> BinaryIO:
    """A plain file, open for reading. Others are refused: a pipe would make the reader wait, and a device has no end.

    Links are followed; code that must not follow them uses `counterpoise.runs.files.open_plain`.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise CounterpoiseError(f"{path} cannot be read: it is not a plain file.")
    return os.fdopen(handle, "rb")


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The values of a TOML text, with limits on nesting and on the size of whole numbers."""
    if _dotted(text) > _DEEPEST:  # the parser's time and memory grow quadratically with a key's parts
        _too_deep(where)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Malformed(f"{where} is not valid TOML: {error}.") from None
    except RecursionError:
        _too_deep(where)
    except ValueError:  # Python's limit on digits
        _too_large(where)
    _check(values, where, 0)
    return values


def parse_json(text: str, where: str) -> Any:
    """The value of a JSON text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise Malformed(f"{where} is not valid JSON: {error}.") from None
    except RecursionError:
        _too_deep(where)
    except ValueError:
        _too_large(where)


def counted(count: int, what: str) -> str:
    """A number of things, in words.

    >>> counted(1, "round"), counted(2, "round")
    ('1 round', '2 rounds')
    """
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def percent(share: float) -> str:
    """A share in percent, for people.

    >>> percent(0.8163)
    '81.6 %'
    """
    return f"{100 * share:.1f} %"


def _dotted(text: str) -> int:
    """The most dots in a dotted key, or in anything that might be one."""
    bare = re.sub(r"\"[^\"\n]*\"|'[^'\n]*'", "q", text).replace(" ", "").replace("\t", "")
    return max(run.count(".") for run in re.split(r"[^\w.-]+", bare))


def _check(value: Any, where: str, depth: int) -> None:
    if depth > _DEEPEST:
        _too_deep(where)
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        _too_large(where)
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        _check(inner, where, depth + 1)


def _too_deep(where: str) -> NoReturn:
    raise CounterpoiseError(f"{where} cannot be read: its tables or lists are nested more than {_DEEPEST} deep.")


def _too_large(where: str) -> NoReturn:
    raise CounterpoiseError(f"{where} cannot be read: it holds a whole number that is too large (over 64 bits).")
