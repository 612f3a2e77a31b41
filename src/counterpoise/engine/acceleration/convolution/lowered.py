"""Replace `conv2d` in a user's model while the model runs."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from counterpoise.engine.acceleration.convolution.geometry import Geometry
from counterpoise.engine.acceleration.convolution.stacked import Convolve

__all__ = ["Lowered", "available"]


def available() -> bool:
    """Whether kernels can be compiled here, which needs a GPU, Triton, and the C compiler that Triton calls."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    return torch.cuda.is_available() and importlib.util.find_spec("triton") is not None and bool(compiler)


class Lowered(TorchFunctionMode):
    """Compute two-dimensional convolutions without groups with `stacked`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _CONVOLUTIONS:
            lowered = _lowered(*args, **kwargs)
            if lowered is not None:
                return lowered
        return func(*args, **kwargs)


_CONVOLUTIONS = (F.conv2d, torch.conv2d)


def _lowered(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """The result of conv2d, or None for a convolution that is left to torch."""
    if groups != 1 or input.ndim != 4 or not input.is_floating_point() or padding == "same":
        return None
    padding = 0 if padding == "valid" else padding
    pairs = (_pair(stride), _pair(padding), _pair(dilation), input.shape[2:], weight.shape[2:])
    geometry = Geometry(*(tuple(pair) for pair in pairs))  # type: ignore[arg-type]
    y: Tensor = Convolve.apply(input.unsqueeze(0), weight.unsqueeze(0), geometry).squeeze(0)  # type: ignore[no-untyped-call]
    return y if bias is None else y + bias[:, None, None]


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)
