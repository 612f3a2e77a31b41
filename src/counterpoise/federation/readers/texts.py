"""Texts of clients, cut into samples whose targets are the characters that follow."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.readers.arrays import Raw, read_archive

__all__ = ["read_texts"]

_LENGTH = 80
_NAMES = ("text_train", "off_train", "text_test", "off_test", "clients")
_NOTHING, _IGNORED = 0, -100
"""The token of padding, and the target that does not count."""


def read_texts(path: Path) -> Raw:
    """Samples of up to 80 characters, as bytes' numbers, and after each character the one that follows.

    The file holds all texts as bytes (``text_train``, ``text_test``), where each client's begins and ends
    (``off_train``, ``off_test``), and the clients' names (``clients``).
    """
    found = read_archive(path, {*_NAMES})
    if missing := [name for name in _NAMES if name not in found]:
        raise CounterpoiseError(f"{path} has no array called {missing[0]}; it needs {', '.join(_NAMES)}.")
    clients = found["clients"]
    for part in ("train", "test"):
        text, ends = found[f"text_{part}"], found[f"off_{part}"]
        fits = ends.ndim == 1 and ends.dtype.kind in "iu" and len(ends) == len(clients) + 1 and text.ndim == 1
        if not fits or text.dtype != np.uint8 or ends[0] != 0 or ends[-1] != len(text) or (np.diff(ends) < 0).any():
            raise CounterpoiseError(
                f"{path} is damaged: off_{part} does not say where each client's text_{part} begins."
            )
    x_train, y_train, owners = _cut(found["text_train"], found["off_train"])
    x_test, y_test, _ = _cut(found["text_test"], found["off_test"])
    return Raw(x_train, y_train, x_test, y_test, clients[owners])


def _cut(text: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs and targets of all samples, and whose each is. The last sample of a client is padded."""
    counts = -(-(np.diff(ends) - 1).clip(min=0) // _LENGTH)
    owners = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = (ends[owners] + number * _LENGTH)[:, None] + np.arange(_LENGTH)
    real = places + 1 < ends[owners + 1][:, None]  # a character counts if another follows
    places = np.where(real, places, 0)
    text = text.astype(np.int64)
    return np.where(real, text[places], _NOTHING), np.where(real, text[places + 1], _IGNORED), owners
