"""A function of fixed buffers as a CUDA graph, recorded once, replayed without Python or launch overhead; or compiled."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from counterpoise.engine.trees import aligned, fill, leaves, on, replaced
from counterpoise.errors import CounterpoiseError

__all__ = ["Compiled", "Recording"]

aten = torch.ops.aten


class Recording:
    """``function(*arguments)``, recorded on the arguments' buffers; a call reads what they hold then.

    What it gives lies in the same buffers after every call: those of `into`, which may be one of the
    arguments, or wherever the function put it. The function may do whatever is a pure function of tensors; what
    waits for the GPU (`.item()`, a branch on a tensor) cannot be recorded. With `fused` it is compiled
    first, for `into` the last argument: what it does element by element becomes few kernels that write it as they compute.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any, into: Any = None, fused: bool = False) -> None:
        self._function, self._arguments, self._into = function, arguments, into
        self._compiled: Compiled | None = None
        drawn = torch.cuda.get_rng_state()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            if fused:
                self._compiled = Compiled(lambda *given: fill(given[-1], function(*given)), *arguments)
            for _ in range(3):  # libraries choose kernels and allocate workspaces before the recording
                self._run()
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
                    self.result = self._run()
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
        if self._compiled is not None:
            self._compiled()
            return self._into
        result = self._function(*self._arguments)
        if self._into is None:
            return result
        fill(self._into, result)
        return self._into

    def renew(self) -> None:
        """To be called when a buffer was written by others."""
        if self._compiled is not None:
            self._compiled.renew()


class Compiled:
    """``function(*arguments)`` of trees of buffers as few kernels; a call reads what the buffers hold then. It is tried once.

    A buffer that the function rewrites may be read in another type: the model's, in bfloat16. That cast is kept
    beside the buffer and written with it, so that no call has to make it first. `renew` it when others wrote the buffer.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        buffers = list(leaves(arguments))

        def run(*buffers: Tensor) -> tuple[Tensor, ...]:
            self._tree = function(*replaced(arguments, buffers))
            return tuple(leaves(self._tree))

        # Traced first: the compiler then sees plain operations, whatever transforms and hooks made them.
        traced = make_fx(run)(*buffers)
        self._tree = on(torch.device("meta"), self._tree)  # its form; the numbers of the trial may go
        kept = [(buffers[place], dtype) for place, dtype in _keep_casts(traced)]
        self._pairs = [(aligned(buffer.to(dtype)), buffer) for buffer, dtype in kept]
        self._buffers = [*buffers, *(cast for cast, _ in self._pairs)]
        self._kernels = _kernels(traced)
        self._renewals = [_kernels(make_fx(Tensor.copy_)(*pair)) for pair in self._pairs]

    def __call__(self) -> Any:
        return replaced(self._tree, self._kernels(*self._buffers))

    def renew(self) -> None:
        for renewal, pair in zip(self._renewals, self._pairs, strict=True):
            renewal(*pair)


def _kernels(traced: GraphModule) -> Callable[..., Any]:
    return torch.compile(traced, dynamic=False, fullgraph=True)


def _keep_casts(traced: GraphModule) -> list[tuple[int, torch.dtype]]:
    """Read casts of what the function rewrites from inputs of their own, and write these when all else is done.

    Returns for each which input it is a cast of, and to which type. A cast that the function returns stays as it is.
    """
    graph = traced.graph
    inputs = list(graph.find_nodes(op="placeholder"))
    writes = {node.args[0]: node for node in graph.find_nodes(op="call_function", target=aten.copy_.default)}
    last, kept = inputs[-1], dict[tuple[Node, torch.dtype], Node]()
    for cast in graph.find_nodes(op="call_function", target=aten._to_copy.default):
        of, dtype = cast.args[0], cast.kwargs.get("dtype")
        if of not in inputs or of not in writes or dtype is None or graph.output_node() in cast.users:
            continue
        if (of, dtype) not in kept:
            with graph.inserting_after(last):
                last = kept[of, dtype] = graph.placeholder(f"cast_{len(kept)}")
        cast.replace_all_uses_with(kept[of, dtype])
        graph.erase_node(cast)
    with graph.inserting_before(graph.output_node()):
        # Both found only now: what is written to one buffer may have been a cast of another.
        new = [graph.call_function(aten._to_copy.default, (writes[of].args[1],), {"dtype": to}) for of, to in kept]
        for pair in zip(kept.values(), new, strict=True):
            graph.call_function(aten.copy_.default, pair)
    for view in graph.find_nodes(op="call_function", target=aten.view.default) if kept else ():
        view.target = aten.reshape.default  # a kept cast's rows are apart, the trace's were not
    traced.recompile()
    return [(inputs.index(of), dtype) for of, dtype in kept]
