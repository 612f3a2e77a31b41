"""One integer counter hash for every random choice, the same on every device and in every runtime.

A draw is a pure function of what it is for: ``counter(seed, purpose("batches"), round, client)``.
Nothing depends on the order of calls, so cohorts, batches, initial weights and dropout do not
change with chunks, workers, devices or the method under test.

The mixer is SplitMix64's finaliser (Steele, Lea, Flood 2014) on 64-bit words that wrap around.
Torch has no unsigned 64-bit arithmetic, so words are int64 and right shifts are masked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from counterpoise.hashing import FIRST, GOLDEN, LAST, SECOND, check_seed, hashed, integer, purpose

__all__ = [
    "check_seed",
    "counted",
    "counter",
    "integer",
    "normal",
    "orders",
    "permuted",
    "purpose",
    "sample",
    "uniform",
]

_TABLE = 2**10
"""Up to this many values, a permutation is computed whole."""


Array = npt.NDArray[np.int64]
Words = TypeVar("Words", Tensor, Array)


def _shift(word: Words, bits: int) -> Words:
    return (word >> bits) & ((1 << (64 - bits)) - 1)


def _mix(word: Words) -> Words:
    word = (word ^ _shift(word, 30)) * FIRST
    word = (word ^ _shift(word, 27)) * SECOND
    return word ^ _shift(word, 31)


def counter(*words: int | Tensor, device: torch.device | str | None = None) -> Tensor:
    """Hash integers, or int64 tensors that broadcast against each other, to int64.

    >>> bool(counter(0, 1, 2) == counter(0, 1, 2)), bool(counter(0, 1, 2) == counter(0, 2, 1))
    (True, False)
    """
    begun, rest = _begun(words, Tensor)
    if device is None:
        device = rest[0].device if rest else "cpu"
    state = torch.full((), begun, dtype=torch.int64, device=device)
    for word in rest:
        state = _mix((state ^ word) + GOLDEN)
    return state


def counted(*words: int | Array) -> Array:
    """`counter` for NumPy arrays, at least one: NumPy takes a fraction of torch's time on small arrays."""
    state, rest = _begun(words, np.ndarray)
    for word in rest:
        state = _mix((state ^ word) + GOLDEN)
    return state  # type: ignore[return-value]


def _begun(words: Sequence[Any], kind: type) -> tuple[int, Sequence[Any]]:
    """The hash of the leading plain integers, as a signed word, and the words that follow them."""
    first = next((i for i, word in enumerate(words) if isinstance(word, kind)), len(words))
    begun = hashed(words[:first])
    return begun - (begun >> 63 << 64), words[first:]


_DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def uniform(bits: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Hashed words as numbers in [0, 1), with as many bits as the type can hold."""
    digits = _DIGITS[dtype]
    wide = dtype if digits > 11 else torch.float32
    return (_shift(bits, 64 - digits).to(wide) * 2.0**-digits).to(dtype)


def normal(bits: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Hashed words as standard normal numbers (Box-Muller, from each word and its rehash)."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    radius = uniform(bits, wide).neg().log1p().mul(-2).sqrt()
    return (radius * torch.cos(2 * torch.pi * uniform(_mix(bits + GOLDEN), wide))).to(dtype)


def orders(keys: Words, sizes: Words, width: int) -> Words:
    """A random order of ``0 .. sizes[i]-1`` for every key: ``[C, width]``, real places first.

    Row i depends on ``keys[i]`` and ``sizes[i]`` alone. Entries from ``sizes[i]`` on are padding
    that the caller must not use.
    """
    if isinstance(keys, Tensor):
        places = torch.arange(width, device=keys.device)
        ranks = torch.where(places < sizes[:, None], counter(keys[:, None], places), LAST)
        return ranks.argsort(dim=1, stable=True)
    numbers = np.arange(width)
    return np.where(numbers < sizes[:, None], counted(keys[:, None], numbers), LAST).argsort(axis=1, kind="stable")


def permuted(keys: Tensor, places: Tensor, size: int) -> Tensor:
    """The values of a random permutation of ``0 .. size-1`` at some places, without computing the others.

    A Feistel network permutes the next power of four; it is applied until the value is below `size`. Each key gives
    one permutation. It runs in NumPy on the CPU, which takes a fraction of torch's time on small arrays.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    # Few bits need many Feistel rounds: with 6 rounds, cohorts of 10 clients were visibly uneven.
    turn = np.arange(16).reshape(-1, *(1,) * places.ndim)
    hashed = counted(np.atleast_1d(keys.numpy()), turn)
    turns = np.broadcast_to(hashed, (16, *places.shape))

    def shuffle(word: Array, mixed: Callable[[Array, Array], Array], turns: Array) -> Array:
        left, right = word >> half, word & mask
        for turn in turns:
            left, right = right, left ^ mixed(turn, right)
        return (left << half) | right

    def mix(turn: Array, right: Array) -> Array:
        return _mix((turn ^ right) + GOLDEN) & mask

    if keys.numel() == 1 and 4**half <= _TABLE:  # whole, because NumPy takes as long for a few numbers as for many
        mixed = mix(hashed.reshape(16, 1), np.arange(mask + 1))
        table = shuffle(np.arange(4**half), np.take, mixed)
        word = table[places.numpy()]
        while (outside := word >= size).any():
            word[outside] = table[word[outside]]
        return torch.from_numpy(word)
    word = shuffle(places.numpy(), mix, turns)
    while (outside := word >= size).any():
        word[outside] = shuffle(word[outside], mix, turns[:, outside])
    return torch.from_numpy(word)


def sample(population: int, count: int, *words: int) -> Tensor:
    """`count` distinct numbers below `population`, in time that grows with `count` alone."""
    if count > population:
        raise ValueError(f"cannot draw {count} of {population}")
    return permuted(counter(*words), torch.arange(count), population)
