"""One training step as a CUDA graph: recorded once, replayed without Python or launch overhead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["Captured"]


class Captured:
    """A function ``(*fixed, carry, *moving) -> carry`` recorded as a CUDA graph on its first call.

    Its inputs live in static buffers: `bind` fills those of `fixed`, each call those of `moving`,
    and `carry` stays where it is from step to step. Hooks may therefore do whatever is a pure
    function of tensors; what waits for the GPU (`.item()`, a branch on a tensor) cannot be recorded.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._graph: torch.cuda.CUDAGraph | None = None
        self._fixed: Any = None
        self._carry: Any = None
        self._moving: Any = None

    @property
    def recorded(self) -> bool:
        return self._graph is not None

    def bind(self, fixed: tuple[Any, ...]) -> Callable[..., Any]:
        """Start on another chunk: load what stays the same over its steps."""
        if self._graph is not None:
            _fill(self._fixed, fixed)
        else:
            self._fixed = _own(fixed)
        return self

    def __call__(self, carry: Any, *moving: Any) -> Any:
        if self._graph is None:
            self._carry, self._moving = _own(carry), _own(moving)
            self._record()
        if carry is not self._carry:
            _fill(self._carry, carry)
        _fill(self._moving, moving)
        assert self._graph is not None
        self._graph.replay()
        return self._carry

    def _record(self) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # libraries choose kernels and allocate workspaces before the recording
                self._function(*self._fixed, self._carry, *self._moving)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            after = self._function(*self._fixed, self._carry, *self._moving)
            _fill(self._carry, after)
        self._graph = graph


def _own(tree: Any) -> Any:
    """A copy of a tree with buffers of its own."""
    return pytree.tree_map(
        lambda t: t.clone(memory_format=torch.contiguous_format) if isinstance(t, Tensor) else t, tree
    )


def _fill(target: Any, source: Any) -> None:
    for to, of in zip(pytree.tree_leaves(target), pytree.tree_leaves(source), strict=True):
        if isinstance(to, Tensor) and to is not of:
            to.copy_(of)
