"""Trees of tensors: tuples and dictionaries of inputs and targets, and those that hooks and phases pass on.

One tensor is a tree too. None is a leaf without values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "align",
    "cat",
    "expand",
    "fill",
    "form",
    "leaves",
    "mapped",
    "on",
    "own",
    "pack",
    "rebuild",
    "row_size",
    "select",
    "stack",
    "unpack",
    "where",
]


def mapped(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply a function to the tensors at the same place in several trees; dictionaries are matched by name."""
    first = trees[0]
    if isinstance(first, Tensor):
        return function(*trees)
    if isinstance(first, dict):
        return {name: mapped(function, *(tree[name] for tree in trees)) for name in sorted(first)}
    if isinstance(first, tuple):
        items = [mapped(function, *column) for column in zip(*trees, strict=True)]
        return type(first)(*items) if hasattr(first, "_fields") else tuple(items)
    return first


def leaves(tree: Any) -> Iterator[Tensor]:
    """The tensors of a tree, in order. Those of a dictionary are sorted by name, as hooks return them in any order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict | tuple):
        for branch in (tree[name] for name in sorted(tree)) if isinstance(tree, dict) else tree:
            yield from leaves(branch)


def form(tree: Any) -> Any:
    """Everything about a tree except its values: names, shapes, strides, types."""
    if isinstance(tree, dict):
        return tuple((name, form(tree[name])) for name in sorted(tree))
    if isinstance(tree, tuple):
        return tuple(map(form, tree))
    return (tree.shape, tree.stride(), tree.dtype) if isinstance(tree, Tensor) else tree


def rebuild(tree: Any, tensors: Sequence[Tensor]) -> Any:
    """The tree with its tensors replaced by others, in order."""
    following = iter(tensors)
    return mapped(lambda _: next(following), tree)


def select(tree: Any, rows: Tensor | int | slice) -> Any:
    """The same rows of every tensor of a tree."""
    return mapped(lambda tensor: tensor[rows], tree)


def stack(trees: Sequence[Any]) -> Any:
    """Stack trees of one shape into one tree of stacked tensors."""
    return mapped(lambda *column: torch.stack(column), *trees)


def cat(trees: Sequence[Any]) -> Any:
    """Concatenate stacked trees along their first dimension."""
    return trees[0] if len(trees) == 1 else mapped(lambda *column: torch.cat(column), *trees)


def expand(tree: Any, count: int) -> Any:
    """The tree repeated for each of `count` clients, without a copy."""
    return mapped(lambda tensor: tensor.expand(count, *tensor.shape), tree)


def where(active: Tensor, new: Any, old: Any) -> Any:
    """The new tree's rows for active clients, the old tree's rows for the others."""
    return mapped(lambda a, b: torch.where(active.view(-1, *(1,) * (a.ndim - 1)), a, b), new, old)


def own(tree: Any) -> Any:
    """A copy of a tree with buffers of its own."""
    return mapped(lambda tensor: tensor.clone(memory_format=torch.contiguous_format), tree)


def align(tree: Any) -> Any:
    """A copy whose rows ``[C, D]`` begin at multiples of 16 bytes.

    Otherwise GPU matrix products fall back to slow kernels.
    """

    def copy(tensor: Tensor) -> Tensor:
        if tensor.ndim != 2 or not tensor.numel():
            return tensor.clone(memory_format=torch.contiguous_format)
        count, width = tensor.shape
        lines = -(-width * tensor.element_size() // 16)
        rows = tensor.new_empty(count, lines * 16 // tensor.element_size())
        if tensor.stride(0):
            rows[:, :width] = tensor
        else:  # one row for all: copied in words of 16 bytes, because a GPU repeats rows word by word
            first = torch.zeros_like(rows[0])
            first[:width] = tensor[0]
            rows.view(torch.complex128).copy_(first.view(torch.complex128))
        return rows[:, :width]

    return mapped(copy, tree)


def on(device: torch.device, tree: Any) -> Any:
    """Copy a tree to a device; tensors that are `ready` are copied without waiting."""
    return mapped(lambda tensor: tensor.to(device, non_blocking=True), tree)


def fill(target: Any, source: Any) -> None:
    """Copy a tree into the buffers of another, name by name.

    If a source lies in one of the target's buffers, it is read before any buffer is written.
    """
    pairs: list[tuple[Tensor, Tensor]] = []
    mapped(lambda to, of: pairs.append((to, of)), target, source)
    held = {to.untyped_storage().data_ptr() for to, _ in pairs}
    pairs = [(to, of) for to, of in pairs if to is not of]
    pairs = [(to, of.clone() if of.untyped_storage().data_ptr() in held else of) for to, of in pairs]
    for to, of in pairs:
        if to.shape != of.shape or to.dtype != of.dtype:
            raise ValueError(
                f"a tensor of {of.dtype} {tuple(of.shape)} does not fit a buffer of {to.dtype} {tuple(to.shape)}"
            )
        to.copy_(of, non_blocking=True)


def pack(tree: Any) -> Tensor:
    """A stacked tree as bytes, one row per client: ``[C, bytes]``."""
    return torch.cat([t.contiguous().view(len(t), -1).view(torch.uint8) for t in leaves(tree) if t.numel()], 1)


def row_size(like: Any) -> int:
    """The number of bytes in a row of `pack`, given one client's tree."""
    return sum(t.numel() * t.element_size() for t in leaves(like))


def unpack(rows: Tensor, like: Any) -> Any:
    """Restore the stacked tree from the rows of `pack`, given one client's tree."""
    columns = torch.split(rows, [t.numel() * t.element_size() for t in leaves(like)], 1)
    stacked = []
    for column, t in zip(columns, leaves(like), strict=True):
        align = column.clone(memory_format=torch.contiguous_format).flatten()  # a column may begin at any byte
        stacked.append(align.view(t.dtype).view(len(rows), *t.shape))
    return rebuild(like, stacked)
