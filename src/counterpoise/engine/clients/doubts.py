"""Warnings about data that are probably not what the user meant, given once, before the first round."""

from __future__ import annotations

import functools
import logging

import torch
from torch import Tensor

from counterpoise.federation import Federation

__all__ = ["tell_doubts"]

log = logging.getLogger(__name__)

_LOOKED_AT = 16
"""Check the pixels of this many samples."""
_DARK = 16
"""Whole numbers no larger than this may be levels or counts; pixels from 0 to 255 exceed it."""


def tell_doubts(federation: Federation) -> None:
    """Warn of class numbers with gaps, and of pixels from 0 to 255 that are stored as floating-point numbers."""
    base = federation.base
    if federation.classes and federation.class_names is None and isinstance(base.targets, Tensor):
        there = torch.unique(base.targets)
        if int(there[0]) > 0 or 2 * len(there) < federation.classes:
            _warn_of_gaps(int(there[0]), len(there), federation.classes)
    if isinstance(base.inputs, Tensor) and base.inputs.ndim > 2 and base.inputs.is_floating_point():
        some = base.inputs[:_LOOKED_AT]
        if bool((some == some.round()).all()) and some.min() >= 0 and _DARK < some.max() <= 255:
            _warn_of_pixels(int(some.max()))


@functools.cache  # once, however many runs have such data
def _warn_of_gaps(first: int, there: int, classes: int) -> None:
    log.warning(
        "Classes count from 0, and the smallest class number is %d. %d of the classes from 0 to %d have samples, but the "
        "model has an output for each. Number them 0, 1, 2, ...: np.unique(y, return_inverse=True)[1]. If other sites hold "
        "the other classes, leave the numbers as they are, and name all classes: class_names=[...].",
        first,
        there,
        classes - 1,
    )


@functools.cache
def _warn_of_pixels(brightest: int) -> None:
    log.warning(
        "The inputs are whole numbers from 0 to %d, stored as floating-point numbers, so they are not scaled. If they are "
        "pixels, give x.astype('uint8'), which is scaled to 0 to 1, or divide by 255.",
        brightest,
    )
