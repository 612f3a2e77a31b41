"""Choices as text: a name with options in brackets, lists of them, and values as TOML writes them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from counterpoise.errors import CounterpoiseError, brief
from counterpoise.texts import Malformed, parse_toml

__all__ = ["listed", "pair", "parse_choice", "parse_value", "split"]


def parse_choice(text: str) -> dict[str, Any]:
    """Parse a name and its options. Each name of a chain may have its own in brackets.

    >>> parse_choice("feddua:fedprox(mu=0.1)")
    {'name': 'feddua:fedprox', 'mu': 0.1}
    >>> parse_choice("feddua(patience=9):fedprox(mu=0.1)")
    {'name': 'feddua:fedprox', 'patience': 9, 'mu': 0.1}
    """
    found = [re.fullmatch(r"\s*([^()\s]+)\s*(?:\((.*)\))?\s*", link) for link in _cut(text, ":")]
    links = [link for link in found if link is not None]
    if len(links) < len(found):
        raise CounterpoiseError(
            f"{brief(text)} is neither a name such as 'fedavg' nor one with options such as 'fedprox(mu=0.1)' or "
            "'feddua(patience=9):fedavg'."
        )
    chosen: dict[str, Any] = {"name": ":".join(link[1] for link in links)}
    for key, value in (pair(part, "An option in brackets") for link in links for part in split(link[2] or "")):
        if key in chosen:
            raise CounterpoiseError(f"The option {key} is given twice in {brief(text)}.")
        chosen[key] = value
    return chosen


def pair(text: str, what: str) -> tuple[str, Any]:
    """A key and its value, from ``mu=0.1``. The error says that `what` takes such a pair."""
    key, equals, given = text.partition("=")
    if not equals or not key.strip() or not given.strip():
        raise CounterpoiseError(f"{what} takes key=value, such as mu=0.1, not {text!r}.")
    return key.strip(), parse_value(given.strip())


def parse_value(text: str) -> Any:
    """Parse a TOML value; text that is not one stays text.

    So does ``nan``: it is the name of an adversary, and no setting may be NaN.
    """
    try:
        found = parse_toml(f"value = {text}", f"The value {brief(text)}")["value"]
    except Malformed:
        return text
    return text if isinstance(found, float) and math.isnan(found) else found


def split(text: str) -> list[str]:
    """Split at commas that are outside brackets and quotes.

    >>> split("fedavg, fedprox(mu=0.1, lr=1), feddua:scaffold")
    ['fedavg', 'fedprox(mu=0.1, lr=1)', 'feddua:scaffold']
    """
    return [part.strip() for part in _cut(text, ",") if part.strip()]


def listed(texts: Sequence[str], names: Sequence[str], known: Callable[[str], bool]) -> list[str]:
    """Split lists at commas, but keep the commas that belong to a name, and those in brackets and quotes.

    `names` are all there are, and `known` says whether a pattern means any of them.

    >>> names = ["all honest", "one liar", "one liar, FedDua"]
    >>> listed("all honest, one liar, FedDua", names, names.__contains__)
    ['all honest', 'one liar, FedDua']
    """
    found = []
    for text in [texts] if isinstance(texts, str) else texts:
        pieces = _cut(text, ",")
        while pieces:
            joined = [",".join(pieces[:end]).strip() for end in range(len(pieces), 0, -1)]
            first = next((one for one in joined if one in names), joined[-1])
            if not known(first):
                first = next(filter(known, joined), first)
            found.append(first)
            pieces = pieces[len(joined) - joined.index(first) :]
    return [name for name in found if name]


def _cut(text: str, at: str) -> list[str]:
    parts, depth, quote = [""], 0, ""
    for character in text:
        quote = "" if character == quote else quote or (character if character in "\"'" else "")
        depth += 0 if quote else (character in "([{") - (character in ")]}")
        if character == at and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return parts
