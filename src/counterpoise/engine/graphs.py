"""One training step as a CUDA graph: recorded once, replayed without Python or launch overhead."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from counterpoise.engine.trees import fill, own
from counterpoise.errors import CounterpoiseError

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
            fill(self._fixed, fixed)
        else:
            self._fixed = own(fixed)
        return self

    def __call__(self, carry: Any, *moving: Any) -> Any:
        if self._graph is None:
            self._carry, self._moving = own(carry), own(moving)
            self._record()
        if carry is not self._carry:
            fill(self._carry, carry)
        fill(self._moving, moving)
        assert self._graph is not None
        self._graph.replay()
        return self._carry

    def _record(self) -> None:
        drawn = torch.cuda.get_rng_state()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # libraries choose kernels and allocate workspaces before the recording
                self._function(*self._fixed, self._carry, *self._moving)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.set_rng_state(drawn)
        graph = torch.cuda.CUDAGraph()
        # A graph that Python throws away during a recording ends the recording, so the collector waits.
        gc.collect()
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.graph(graph):
                fill(self._carry, self._function(*self._fixed, self._carry, *self._moving))
        except RuntimeError as error:
            raise CounterpoiseError(
                "This training step cannot be recorded as a CUDA graph: the model or a hook waits for the GPU or makes a "
                f"tensor from a Python number ({str(error).splitlines()[0]}). Choose engine=cp.Engine(backend='per-client')."
            ) from error
        finally:
            if collecting:
                gc.enable()
        self._graph = graph
