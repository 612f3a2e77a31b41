"""A few numbers for each client, in NumPy: for so few, torch takes several times as long, and a GPU longer still."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from counterpoise.method import Tensors

__all__ = ["Columns", "Numbers", "column", "divided", "fetch", "lengths", "read", "written"]

Numbers = npt.NDArray[np.float64]
"""``[C]``"""
Columns = Mapping[str, Numbers]


def fetch(*columns: Tensor) -> Numbers:
    """Columns ``[C]`` from their device in one transfer, so that a GPU is waited for once: ``[K, C]``.

    >>> fetch(torch.tensor([3, 5]), torch.tensor([0.5, 0.25])).tolist()
    [[3.0, 5.0], [0.5, 0.25]]
    """
    rows = torch.stack(columns) if len(columns) > 1 else columns[0][None]
    return rows.cpu().double().numpy()


def lengths(rows: Tensor) -> Numbers:
    """The length of each row ``[C, D]``."""
    found: Numbers = fetch(torch.linalg.vector_norm(rows, dim=1))[0]
    return found


def column(numbers: npt.NDArray[np.generic], rows: Tensor) -> Tensor:
    """Numbers ``[C]`` as a column for the rows of a matrix ``[C, D]``: on its device and in its precision."""
    return torch.from_numpy(numbers).to(rows, non_blocking=True)[:, None]


def divided(above: Numbers, below: Numbers) -> Numbers:
    """The quotients; 0 where the divisor is."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def read(records: Tensors, names: Iterable[str]) -> dict[str, Numbers]:
    """Some of the records that a part keeps on the CPU."""
    return {name: records[name].numpy() for name in names}


def written(columns: Columns) -> dict[str, Tensor]:
    """Records that a part keeps on the CPU."""
    return {name: torch.from_numpy(numbers) for name, numbers in columns.items()}
