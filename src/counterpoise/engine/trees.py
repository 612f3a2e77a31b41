"""Trees of tensors: named tuples and dictionaries, as hooks and phases pass them on.

The one place that knows torch's own tree module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["cat", "fill", "layout", "own", "select", "stack", "where"]


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
