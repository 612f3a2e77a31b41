"""A function of fixed buffers as a CUDA graph, recorded once, replayed without Python or launch overhead; or compiled."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from counterpoise.engine.trees import fill, leaves, replaced
from counterpoise.errors import CounterpoiseError

__all__ = ["Recording", "compiled"]


class Recording:
    """``function(*arguments)``, recorded on the arguments' buffers; a call reads what they hold then.

    What it gives lies in the same buffers after every call: those of `into`, which may be one of the
    arguments, or wherever the function put it. The function may do whatever is a pure function of tensors; what
    waits for the GPU (`.item()`, a branch on a tensor) cannot be recorded. With `fused` it is compiled
    first: what it does element by element becomes few kernels that write `into` as they compute.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any, into: Any = None, fused: bool = False) -> None:
        self._function, self._arguments, self._into = function, arguments, into
        drawn = torch.cuda.get_rng_state()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run = self._fused() if fused else self._run
            for _ in range(3):  # libraries choose kernels and allocate workspaces before the recording
                run()
        torch.cuda.synchronize()
        torch.cuda.set_rng_state(drawn)
        self._graph = torch.cuda.CUDAGraph()
        # A graph that Python throws away during a recording ends the recording, so the collector waits.
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.stream(stream):
                self._graph.capture_begin()
                try:
                    self.result = run()
                finally:
                    self._graph.capture_end()
            torch.cuda.current_stream().wait_stream(stream)
        except RuntimeError as error:
            raise CounterpoiseError(
                "This training step cannot be recorded as a CUDA graph: the model or a hook waits for the GPU or makes a "
                f"tensor from a Python number ({str(error).splitlines()[0]}). Choose engine=cp.Engine(backend='per-client')."
            ) from error
        finally:
            if collecting:
                gc.enable()

    def __call__(self) -> Any:
        self._graph.replay()
        return self.result

    def _run(self) -> Any:
        result = self._function(*self._arguments)
        if self._into is None:
            return result
        fill(self._into, result)
        return self._into

    def _fused(self) -> Callable[[], Any]:
        """`_run`, compiled, for a function that writes into its last argument."""
        write = compiled(lambda *given: fill(given[-1], self._function(*given)), *self._arguments)

        def run() -> Any:
            write()
            return self._into

        return run


def compiled(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    """``function(*arguments)`` of trees of buffers as few kernels; a call reads what the buffers hold then."""
    buffers, tree = list(leaves(arguments)), None

    def run(*buffers: Tensor) -> tuple[Tensor, ...]:
        nonlocal tree
        tree = function(*replaced(arguments, buffers))
        return tuple(leaves(tree))

    # Traced first: the compiler then sees plain operations, whatever transforms and hooks made them.
    kernels = torch.compile(make_fx(run)(*buffers), dynamic=False, fullgraph=True)
    return lambda: replaced(tree, kernels(*buffers))
