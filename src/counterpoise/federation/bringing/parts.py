"""Samples whose inputs or targets have several parts, read part by part. One piece is one part, without a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.bringing.source import Block

__all__ = ["TOKENS", "Keys", "apart", "assembled", "keys_of", "part_of", "rows_of", "target_keys", "target_part"]

TOKENS = ("input_ids", "attention_mask", "token_type_ids")
"""What tokenisers of Hugging Face call their parts."""
Keys = tuple[Any, ...]
"""The names of parts, or their places in a tuple; ``(None,)`` for one piece."""


def keys_of(block: Block | Mapping[str, Any]) -> Keys:
    """The parts of a block's inputs, which its first sample shows."""
    return _keys(block if isinstance(block, Mapping) else block[0])


def _keys(sample: Any) -> Keys:
    if isinstance(sample, Mapping | tuple) and not sample:
        return (None,)  # refused when it is to become an array
    if isinstance(sample, Mapping):
        return tuple(sorted(sample))
    return tuple(range(len(sample))) if isinstance(sample, tuple) else (None,)


def part_of(
    block: Block | Mapping[Any, Any], key: Any, keys: Keys, where: str, first: int, what: str = "inputs"
) -> Block:
    """One part of all samples of a block; `first` is the number of its first sample."""
    if isinstance(block, Mapping):
        _check(_keys(block), keys, where, what)
        return block[key]  # type: ignore[no-any-return]
    if isinstance(block, Sequence):
        for number, sample in enumerate(block):
            _check(_keys(sample), keys, f"{where}: sample {first + number}", what)
    else:
        _check((None,), keys, where, what)
    return block if key is None else [sample[key] for sample in block]


def target_keys(block: Block | Mapping[Any, Any]) -> Keys:
    """The parts of a block's targets. A tuple of plain numbers is one target, as an array of them is."""
    sample = block if isinstance(block, Mapping | np.ndarray | Tensor) else block[0]
    whole = isinstance(sample, tuple) and not any(isinstance(part, np.ndarray | Tensor) for part in sample)
    return (None,) if whole else _keys(sample)


def target_part(block: Block | Mapping[Any, Any], key: Any, keys: Keys, where: str, first: int) -> Block:
    """As `part_of`, for targets."""
    if key is None and not isinstance(block, Mapping):
        return block
    return part_of(block, key, keys, where, first, "targets")


def rows_of(block: Any, start: int, stop: int) -> Any:
    """Some rows of arrays, of which there is one or several by name or place."""
    if isinstance(block, Mapping):
        return {key: part[start:stop] for key, part in block.items()}
    return block[start:stop]


def _check(found: Keys, keys: Keys, where: str, what: str) -> None:
    if found != keys:
        raise CounterpoiseError(
            f"{where} has {_in_words(found, what)}, but others have {_in_words(keys, what)}. Give the same parts to all."
        )


def _in_words(keys: Keys, what: str) -> str:
    if keys == (None,):
        return f"{what} in one piece"
    return (
        f"{len(keys)} parts" if all(isinstance(key, int) for key in keys) else f"the parts {', '.join(map(str, keys))}"
    )


def assembled(arrays: Mapping[Any, np.ndarray]) -> Any:
    """The arrays of all parts as a federation takes them: one array, a tuple or a dictionary."""
    if None in arrays:
        return arrays[None]
    return dict(arrays) if any(isinstance(key, str) for key in arrays) else tuple(arrays.values())


def apart(tree: Any) -> dict[Any, np.ndarray]:
    """The inverse of `assembled`."""
    if isinstance(tree, dict):
        return tree
    return dict(enumerate(tree)) if isinstance(tree, tuple) else {None: tree}
