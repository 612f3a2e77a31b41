"""How the bytes of pictures become the numbers that a model sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError, brief, unknown
from counterpoise.federation.structure import is_structured

__all__ = ["PLAIN", "Scaling", "choose_scaling", "scaled"]

SCALINGS = ("unit", "centred", "standard", "per-picture")
Scaling = str | Mapping[str, Sequence[float]]
Factor = Tensor | float
PLAIN = 1.0 / 255
"""The factor that makes numbers from 0 to 1 of bytes."""


def scaled(inputs: Any, scaling: Scaling | None, scale: Factor, shift: Factor) -> tuple[Factor, Factor]:
    """The factor and shift for a user's own data, who gives both, or a scaling over these inputs."""
    if scaling is None:
        return scale, shift
    if isinstance(scale, Tensor) or isinstance(shift, Tensor) or (scale, shift) != (PLAIN, 0.0):
        raise CounterpoiseError("scaling says what scale and shift are. Give it or these two, not both.")
    return choose_scaling(inputs, scaling, "the data")


def choose_scaling(
    inputs: Any, scaling: Scaling | None, name: str, peak: int = 255, usual: str = "unit"
) -> tuple[Factor, Factor]:
    """The factor and shift that turn bytes up to `peak` into the numbers a model sees; `usual` is the default."""
    if isinstance(scaling, str) and scaling not in SCALINGS:
        raise unknown("scaling", scaling, SCALINGS)
    if scaling is not None and is_structured(inputs):
        raise CounterpoiseError(f"scaling is for pictures in one array, but the inputs of {name} have several parts.")
    if scaling is not None and inputs.dtype != np.uint8:
        raise CounterpoiseError(f"scaling is for bytes, but the inputs of {name} are {inputs.dtype}.")
    scaling = scaling or usual
    if scaling == "unit":
        return 1.0 / peak, 0.0
    if scaling == "centred":
        return 2.0 / peak, -1.0
    if scaling == "per-picture":  # each picture is scaled in a batch, after it was cut
        return 1.0, 0.0
    if not isinstance(scaling, str):
        mean, deviation = _given(inputs, scaling)
        return _by_channel(peak * mean, peak * deviation, inputs)
    x = inputs if inputs.ndim == 4 else inputs.reshape(len(inputs), 1, 1, -1)
    counts = np.stack([np.bincount(x[:, channel].ravel(), minlength=256) for channel in range(x.shape[1])])
    shares, levels = counts / counts.sum(1, keepdims=True), np.arange(256)
    mean = shares @ levels
    deviation = np.sqrt((shares * (levels - mean[:, None]) ** 2).sum(1))
    deviation[deviation == 0] = 1.0
    return _by_channel(mean, deviation, inputs)


def _given(inputs: np.ndarray, scaling: Any) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the deviation of each channel that a user named, for pixels from 0 to 1."""
    channels = inputs.shape[1] if inputs.ndim == 4 else 1
    try:
        mean, deviation = (np.array([float(value) for value in scaling[key]]) for key in ("mean", "deviation"))
    except (KeyError, TypeError, ValueError):
        mean = deviation = np.empty(0)
    fine = len(mean) == len(deviation) == channels and len(scaling) == 2
    if not fine or not np.isfinite(mean).all() or not ((deviation > 0) & (deviation < np.inf)).all():
        raise CounterpoiseError(
            "scaling must be a name or a table with mean and deviation, each a list with a number for each of "
            f"{channels} channels, for pixels from 0 to 1; deviations are above 0. This is {brief(scaling)}."
        )
    return mean, deviation


def _by_channel(mean: np.ndarray, deviation: np.ndarray, inputs: np.ndarray) -> tuple[Factor, Factor]:
    factor, shift = 1 / deviation, -mean / deviation
    if inputs.ndim != 4:
        return float(factor[0]), float(shift[0])
    return torch.from_numpy(factor)[:, None, None], torch.from_numpy(shift)[:, None, None]
