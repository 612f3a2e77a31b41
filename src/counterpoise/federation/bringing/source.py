"""A source: samples that can be read in blocks, before they become arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from counterpoise.federation.naming import Names

__all__ = ["Block", "Source"]

Block = Sequence[Any] | np.ndarray | Tensor
"""The inputs or the targets of some samples, one after the other."""


@dataclass(frozen=True)
class Source:
    """The samples of one client, of the test set, or of all clients together."""

    where: str
    """Whose samples they are, for sentences."""
    count: int
    read: Callable[[int, int], tuple[Block, Block]]
    """Inputs and targets of the samples from one number up to another."""
    class_names: Names | None = None
    """What the class numbers among the targets stand for."""
    identities: Any = None
    """Who each sample comes from, if that is known."""
    steady: bool = True
    """Whether a sample is surely the same each time it is read; if not, some are read twice."""
