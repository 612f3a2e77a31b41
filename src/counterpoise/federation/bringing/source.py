"""A source: samples that can be read in blocks, before they become arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from counterpoise.federation.naming import Names

__all__ = ["INPUTS", "TARGETS", "Block", "Columns", "Head", "Later", "Source"]

Block = Sequence[Any] | np.ndarray | Tensor
"""The inputs or the targets of some samples, one after the other."""
INPUTS = ("image", "img", "pixel_values", "inputs", "features", "x")
TARGETS = ("label", "labels", "target", "targets", "class", "y")
"""Usual names of the parts of a sample, the commonest first."""
Columns = Mapping[str, str | Sequence[str]]
"""Which columns, or which parts of a sample that is a dictionary, hold what."""


@dataclass(frozen=True)
class Later:
    """An input that is made when its turn comes, such as a picture in a file, so that few are open at a time."""

    make: Callable[[], Any]


class Head(NamedTuple):
    """What the head of a picture file says."""

    name: str
    size: tuple[int, int]
    """Height and width."""
    colour: bool
    transparent: bool


@dataclass(frozen=True)
class Source:
    """The samples of one client, of the test set, or of all clients together."""

    where: str
    """Whose samples they are, for sentences."""
    count: int
    read: Callable[[int, int], tuple[Any, Any]]
    """Inputs and targets of the samples from one number up to another: blocks, or dictionaries of blocks."""
    class_names: Names | None = None
    """What the class numbers among the targets stand for."""
    identities: Any = None
    """Who each sample comes from, if that is known."""
    steady: bool = True
    """Whether a sample is surely the same each time it is read; if not, some are read twice."""
    heads: Callable[[], list[Head]] | None = None
    """Looks at all pictures before they are read, if that is quick."""
