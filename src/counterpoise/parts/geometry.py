"""Angles and distances between the updates of a cohort, and rules that act on each coordinate."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["by_columns", "cosines", "square_distances"]

_NUMBERS = 2**24
"""How many numbers a piece of the cohort's matrix holds. Sorting or float64 copies take several times that memory."""


def cosines(rows: Tensor, vector: Tensor) -> Tensor:
    """``cos(d_i, v)`` of each row ``[C, D]`` with a vector ``[D]``; 0 if either is zero.

    >>> cosines(torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]), torch.tensor([2.0, 0.0])).tolist()
    [1.0, 0.7071067690849304, 0.0]
    """
    lengths = torch.linalg.vector_norm(rows, dim=1) * torch.linalg.vector_norm(vector)
    there = lengths > 0
    return torch.where(there, (rows @ vector) / torch.where(there, lengths, 1), 0).clamp(-1, 1)


def by_columns(rule: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Apply a rule ``[C, d] -> [d]`` that treats each coordinate alone, piece by piece to save memory."""
    return torch.cat([rule(piece) for piece in _pieces(rows)])


def square_distances(rows: Tensor) -> Tensor:
    """``|d_i - d_j|^2`` for all pairs ``[C, C]``, in float64 on the CPU.

    Computed from differences: inner products would lose all digits for clients that agree.
    """
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for piece in _pieces(rows):
        wide = piece.double()
        total += torch.cdist(wide, wide, compute_mode="donot_use_mm_for_euclid_dist").square()
    return total.cpu()


def _pieces(rows: Tensor) -> tuple[Tensor, ...]:
    return torch.split(rows, max(1, _NUMBERS // max(1, len(rows))), dim=1)
