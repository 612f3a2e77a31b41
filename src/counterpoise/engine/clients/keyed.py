"""Randomness inside a model, drawn from the counter hash instead of torch's generators.

`vmap` draws by position in the chunk, and threads share one generator: both would make a client's
dropout depend on who trains beside it. While `Keyed` is active, dropout and the plain random
functions depend only on the client's key, the number of the call and the position in the tensor.

The first dimension must be the batch, so that a sample's draws do not depend on the padding behind it.
Draws made during the backward pass, when `torch.utils.checkpoint` recomputes, are not keyed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from counterpoise.randomness import counter, normal, uniform

__all__ = ["Keyed"]


class Keyed(TorchFunctionMode):
    """Replace random draws in a forward pass by hashes of ``key``, one stream per call."""

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key = key
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        replacement = _REPLACED.get(func)
        if replacement is None:
            return func(*args, **(kwargs or {}))
        return replacement(self, *args, **(kwargs or {}))

    def bits(self, shape: Sequence[int]) -> Tensor:
        """Hashed words of a shape. A sample's words do not depend on how many follow it."""
        self.calls += 1
        places = torch.arange(int(torch.Size(shape).numel()), device=self.key.device)
        return counter(self.key, self.calls, places).view(tuple(shape))

    def mask(self, shape: Sequence[int], keep: Any, dtype: torch.dtype) -> Tensor:
        return torch.lt(uniform(self.bits(shape), torch.float32), keep).to(dtype)


def _dropout(mode: Keyed, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or p == 0:
        return input
    if p == 1:
        return input * 0
    return input * mode.mask(input.shape, 1 - p, input.dtype) / (1 - p)


def _feature_dropout(
    mode: Keyed, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Drop whole channels. The input is a batch of samples: the engine never passes anything else."""
    if not training or p == 0:
        return input
    if p == 1:
        return input * 0
    shape = (*input.shape[:2], *(1 for _ in input.shape[2:]))
    return input * mode.mask(shape, 1 - p, input.dtype) / (1 - p)


def _shape(args: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(args[0]) if len(args) == 1 and not isinstance(args[0], int) else tuple(args)


def _make_fill(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def fill(mode: Keyed, *size: Any, dtype: torch.dtype | None = None, **others: Any) -> Tensor:
        size = _shape(size or (others["size"],))
        return draw(mode.bits(size), dtype or torch.get_default_dtype())

    return fill


def _make_fill_like(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def fill(mode: Keyed, input: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
        return draw(mode.bits(input.shape), dtype or input.dtype)

    return fill


def _bernoulli(mode: Keyed, input: Tensor, p: float | None = None, **_: Any) -> Tensor:
    return mode.mask(input.shape, input if p is None else p, input.dtype)


_REPLACED: dict[Any, Callable[..., Tensor]] = {
    F.dropout: _dropout,
    torch.dropout: _dropout,
    F.dropout1d: _feature_dropout,
    F.dropout2d: _feature_dropout,
    F.dropout3d: _feature_dropout,
    torch.rand: _make_fill(uniform),
    torch.randn: _make_fill(normal),
    torch.rand_like: _make_fill_like(uniform),
    torch.randn_like: _make_fill_like(normal),
    torch.bernoulli: _bernoulli,
    torch.Tensor.bernoulli: _bernoulli,
}
