"""Texts of different lengths as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from counterpoise.errors import CounterpoiseError, brief, takes_only_its_options

__all__ = ["padded"]


@takes_only_its_options()
def padded(texts: Sequence[Any], token: int, length: int | None = None) -> dict[str, np.ndarray]:
    """Texts as inputs of a model: ``input_ids``, padded at the end with a token, and ``attention_mask``, 1 where real.

    A text is a sequence of whole numbers. All get the length of the longest, or the `length` given, so that several
    clients have the same. For targets, take the part ``input_ids`` and the token -100, which does not count in the loss
    and in the accuracy.

    >>> made = padded([[5, 6, 7], [8]], token=0)
    >>> made["input_ids"].tolist(), made["attention_mask"].tolist()
    ([[5, 6, 7], [8, 0, 0]], [[1, 1, 1], [1, 0, 0]])
    """
    if not _is_whole(token):
        raise CounterpoiseError(f"padded: token must be a whole number, not {brief(token)}.")
    if length is not None and (not _is_whole(length) or length < 1):
        raise CounterpoiseError(f"padded: length must be a whole number from 1 on, not {brief(length)}.")
    if isinstance(texts, str | bytes | Mapping) or not hasattr(texts, "__iter__"):
        raise CounterpoiseError(f"padded: give a list of texts, each a row of tokens, not {brief(texts)}.")
    rows = [_tokens(text, number) for number, text in enumerate(texts)]
    if not rows:
        raise CounterpoiseError("padded: there are no texts.")
    sizes = np.array([len(row) for row in rows])
    width = int(sizes.max() if length is None else length)
    if width < sizes.max():
        raise CounterpoiseError(
            f"padded: text {int(sizes.argmax())} has {int(sizes.max())} tokens, but length is {length}. Cut it, or give a "
            "larger length."
        )
    real = np.arange(width) < sizes[:, None]
    ids = np.full(real.shape, token, np.int64)
    ids[real] = np.concatenate(rows)
    return {"input_ids": ids, "attention_mask": real.astype(np.int64)}


def _is_whole(given: object) -> bool:
    return isinstance(given, int | np.integer) and not isinstance(given, bool)


def _tokens(text: Any, number: int) -> np.ndarray:
    if isinstance(text, str | bytes):
        raise CounterpoiseError(
            f"padded: text {number} is {brief(text)}; turn it into tokens, which are numbers, first."
        )
    try:
        row = np.asarray(text.cpu() if isinstance(text, Tensor) else text)
    except (ValueError, TypeError, RuntimeError):
        row = np.empty((0, 0))
    if row.ndim != 1 or not row.size or row.dtype.kind not in "iu":
        raise CounterpoiseError(f"padded: text {number} must be a row of one or more whole numbers, not {brief(text)}.")
    return row
