"""A few numbers for each client, computed with on the CPU: on a GPU, launching a kernel for each step takes longer."""

from __future__ import annotations

import torch
from torch import Tensor, device

from counterpoise.method import Tensors

__all__ = ["moved"]


def moved(columns: Tensors, where: device | str) -> dict[str, Tensor]:
    """Columns ``[C]`` on another device, in float64 and in one transfer.

    >>> moved({"count": torch.tensor([3, 5]), "share": torch.tensor([0.5, 0.25])}, "cpu")["count"].tolist()
    [3.0, 5.0]
    """
    rows = torch.stack([column.double() for column in columns.values()]).to(where)
    return dict(zip(columns, rows, strict=True))
