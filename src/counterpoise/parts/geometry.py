"""Angles between the updates of a cohort and one direction."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["cosines"]


def cosines(rows: Tensor, vector: Tensor) -> Tensor:
    """``cos(d_i, v)`` of each row ``[C, D]`` with a vector ``[D]``; 0 where either is zero.

    >>> cosines(torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]), torch.tensor([2.0, 0.0])).tolist()
    [1.0, 0.7071067690849304, 0.0]
    """
    lengths = torch.linalg.vector_norm(rows, dim=1) * torch.linalg.vector_norm(vector)
    there = lengths > 0
    return torch.where(there, (rows @ vector) / torch.where(there, lengths, 1), 0).clamp(-1, 1)
