"""Samples whose inputs have several parts, read part by part. Inputs in one piece are one part, without a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.bringing.source import Block

__all__ = ["TOKENS", "Keys", "assembled", "keys_of", "part_of"]

TOKENS = ("input_ids", "attention_mask", "token_type_ids")
"""What tokenisers of Hugging Face call their parts."""
Keys = tuple[Any, ...]
"""The names of parts, or their places in a tuple; ``(None,)`` for inputs in one piece."""


def keys_of(block: Block | Mapping[str, Any]) -> Keys:
    """The parts of a block's inputs, which its first sample shows."""
    return _keys(block if isinstance(block, Mapping) else block[0])


def _keys(sample: Any) -> Keys:
    if isinstance(sample, Mapping):
        return tuple(sorted(sample))
    return tuple(range(len(sample))) if isinstance(sample, tuple) else (None,)


def part_of(block: Block | Mapping[str, Any], key: Any, keys: Keys, where: str, first: int) -> Block:
    """One part of all samples of a block; `first` is the number of its first sample."""
    if isinstance(block, Mapping):
        _check(_keys(block), keys, where)
        return block[key]  # type: ignore[no-any-return]
    if isinstance(block, Sequence):
        for number, sample in enumerate(block):
            _check(_keys(sample), keys, f"{where}: sample {first + number}")
    else:
        _check((None,), keys, where)
    return block if key is None else [sample[key] for sample in block]


def _check(found: Keys, keys: Keys, what: str) -> None:
    if found != keys:
        raise CounterpoiseError(
            f"{what} has {_in_words(found)}, but others have {_in_words(keys)}. Give the same parts to all."
        )


def _in_words(keys: Keys) -> str:
    if keys == (None,):
        return "inputs in one piece"
    return (
        f"{len(keys)} parts" if all(isinstance(key, int) for key in keys) else f"the parts {', '.join(map(str, keys))}"
    )


def assembled(arrays: Mapping[Any, np.ndarray]) -> Any:
    """The arrays of all parts as a federation takes them: one array, a tuple or a dictionary."""
    if None in arrays:
        return arrays[None]
    return dict(arrays) if any(isinstance(key, str) for key in arrays) else tuple(arrays.values())
