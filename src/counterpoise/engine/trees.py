"""Trees of tensors: named tuples and dictionaries, as hooks and phases pass them on.

The one place that knows torch's own tree module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["cat", "fill", "layout", "own", "pack", "row_size", "select", "stack", "unpack", "where"]


def select(tree: Any, rows: Tensor | int) -> Any:
    """The same rows of every tensor of a tree."""
    return pytree.tree_map(lambda tensor: tensor[rows], tree)


def stack(trees: Sequence[Any]) -> Any:
    """Trees of one shape as one tree of stacked tensors."""
    return pytree.tree_map(lambda *column: torch.stack(column), *trees)


def cat(trees: Sequence[Any]) -> Any:
    """Stacked trees of one shape, one below the other."""
    return trees[0] if len(trees) == 1 else pytree.tree_map(lambda *column: torch.cat(column), *trees)


def where(active: Tensor, new: Any, old: Any) -> Any:
    """The new tree's rows where a client is active, the old one's elsewhere."""
    return pytree.tree_map(lambda a, b: torch.where(active.view(-1, *(1,) * (a.ndim - 1)), a, b), new, old)


def layout(tree: Any) -> tuple[Any, ...]:
    """Names, shapes and types: what two trees share when one can be copied into the other."""
    leaves, structure = pytree.tree_flatten(tree)
    kinds = [(tuple(t.shape), t.dtype) if isinstance(t, Tensor) else t for t in leaves]
    return (structure, *kinds)


def own(tree: Any) -> Any:
    """A copy of a tree with buffers of its own."""
    return pytree.tree_map(
        lambda t: t.clone(memory_format=torch.contiguous_format) if isinstance(t, Tensor) else t, tree
    )


def fill(target: Any, source: Any) -> None:
    """Copy a tree into the buffers of another, name by name.

    A source that lies in one of the target's buffers is read before any buffer is written.
    """
    buffers, structure = pytree.tree_flatten(target)
    pairs = [
        (to, of)
        for to, of in zip(buffers, structure.flatten_up_to(source), strict=True)
        if isinstance(to, Tensor) and to is not of
    ]
    held = {to.untyped_storage().data_ptr() for to in buffers if isinstance(to, Tensor)}
    pairs = [(to, of.clone() if of.untyped_storage().data_ptr() in held else of) for to, of in pairs]
    for to, of in pairs:
        if to.shape != of.shape or to.dtype != of.dtype:
            raise ValueError(
                f"a tensor of {of.dtype} {tuple(of.shape)} does not fit a buffer of {to.dtype} {tuple(to.shape)}"
            )
        to.copy_(of)


def pack(tree: Any) -> Tensor:
    """A stacked tree as bytes, a row for each client: ``[C, bytes]``."""
    leaves = pytree.tree_leaves(tree)
    count = len(leaves[0])
    return torch.cat([t.contiguous().view(count, -1).view(torch.uint8) for t in leaves if t.numel()], 1)


def row_size(like: Any) -> int:
    """The bytes of a row of `pack`, given the tree of one client."""
    return sum(t.numel() * t.element_size() for t in pytree.tree_leaves(like))


def unpack(rows: Tensor, like: Any) -> Any:
    """The stacked tree that `pack` made rows of, given the tree of one client."""
    leaves, structure = pytree.tree_flatten(like)
    columns = torch.split(rows, [t.numel() * t.element_size() for t in leaves], 1)
    stacked = [
        column.contiguous().view(t.dtype).view(len(rows), *t.shape) if t.numel() else t.new_empty(len(rows), *t.shape)
        for column, t in zip(columns, leaves, strict=True)
    ]
    return structure.unflatten(stacked)
