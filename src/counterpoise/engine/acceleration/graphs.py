"""A function of fixed buffers, compiled, or captured as a CUDA graph that runs without Python or launch overhead."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from counterpoise.errors import CounterpoiseError
from counterpoise.memory import out_of_memory
from counterpoise.trees import align, fill, leaves, on, rebuild

__all__ = ["CapturedGraph", "Compiled", "uncaptured"]

aten = torch.ops.aten


class CapturedGraph:
    """``function(*arguments)``, captured on the arguments' buffers; a call reads what they hold at that time.

    The result lies in the same buffers after every call: those of `into`, which may be one of the arguments, or
    wherever the function put it. The function must be a pure function of tensors that never waits for the GPU
    (`.item()`, a branch on a tensor). With `compiled`, the function is compiled first, and `into` must be the last
    argument: elementwise operations become a few kernels, which write `into` as they compute.

    Graphs with the same `pool` (`torch.cuda.graph_pool_handle`) share the memory for what they compute in between. They
    must have an `into`, and never run at the same time.
    """

    def __init__(
        self, function: Callable[..., Any], *arguments: Any, into: Any = None, compiled: bool = False, pool: Any = None
    ) -> None:
        self._function, self.arguments, self._into = function, arguments, into
        self._compiled: Compiled | None = None
        drawn = torch.cuda.get_rng_state()
        # The default stream cannot be captured. Any other belongs to the caller; captured there, a graph shares no
        # library's workspace with what runs on other streams at the same time.
        stream = current = torch.cuda.current_stream()
        if current == torch.cuda.default_stream():
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            if compiled:
                self._compiled = Compiled(lambda *given: fill(given[-1], function(*given)), *arguments)
            for _ in range(3):  # libraries choose kernels and allocate workspaces before the capture
                self._run()
        torch.cuda.synchronize()
        torch.cuda.set_rng_state(drawn)
        torch.cuda.empty_cache()  # a capture cannot use what these calls left reserved
        self._graph = torch.cuda.CUDAGraph()
        # A capture fails if the garbage collector frees a graph meanwhile, so the collector is off during it.
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.stream(stream):
                self._graph.capture_begin(pool)
                try:
                    self.result = self._run()
                finally:
                    self._graph.capture_end()
            torch.cuda.current_stream().wait_stream(stream)
        except RuntimeError as error:
            raise uncaptured(error) from error
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
        result = self._function(*self.arguments)
        if self._into is None:
            return result
        fill(self._into, result)
        return self._into

    def renew(self) -> None:
        """Call this after something else has written to a buffer."""
        if self._compiled is not None:
            self._compiled.renew()


def uncaptured(error: RuntimeError) -> Exception:
    """What to raise if a capture failed with this error."""
    for one in (error, error.__context__):  # ending a broken capture raises an error of its own
        if isinstance(one, Exception) and out_of_memory(one):
            return MemoryError(f"The GPU ran out of memory while a training step was captured: {one}")
    return CounterpoiseError(
        "This training step cannot be captured as a CUDA graph: the model or a hook waits for the GPU or makes a tensor "
        f"from a Python number ({str(error).splitlines()[0]}). Choose engine=cp.Engine(backend='per-client')."
    )


class Compiled:
    """``function(*arguments)`` of trees of buffers, compiled to few kernels; a call reads what the buffers hold then.

    Compiling runs the function once. The function may read a buffer that it rewrites in another type, such as the
    model in bfloat16. That cast is kept beside the buffer and written with it, so that no call has to make it first.
    Call `renew` after something else has written to the buffer.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        buffers = list(leaves(arguments))

        def run(*buffers: Tensor) -> tuple[Tensor, ...]:
            self._tree = function(*rebuild(arguments, buffers))
            return tuple(leaves(self._tree))

        # Traced first: the compiler then sees plain operations, whatever transforms and hooks made them.
        traced = make_fx(run)(*buffers)
        self._tree = on(torch.device("meta"), self._tree)  # its form is kept, the values of the trial are freed
        kept = [(buffers[place], dtype) for place, dtype in _keep_casts(traced)]
        self._pairs = [(align(buffer.to(dtype)), buffer) for buffer, dtype in kept]
        self._buffers = [*buffers, *(cast for cast, _ in self._pairs)]
        self._kernels = _kernels(traced)
        self._renewals = [_kernels(make_fx(Tensor.copy_)(*pair)) for pair in self._pairs]

    def __call__(self) -> Any:
        return rebuild(self._tree, self._kernels(*self._buffers))

    def renew(self) -> None:
        for renewal, pair in zip(self._renewals, self._pairs, strict=True):
            renewal(*pair)


def _kernels(traced: GraphModule) -> Callable[..., Any]:
    return torch.compile(traced, dynamic=False, fullgraph=True)


def _keep_casts(traced: GraphModule) -> list[tuple[int, torch.dtype]]:
    """Turn each cast of a rewritten input into an input of its own, which is written after everything else.

    Returns, for each new input, which input it is a cast of and its type. A cast that the function returns stays.
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
        # The written values are looked up only now: the value for one buffer may have been a cast of another.
        new = [graph.call_function(aten._to_copy.default, (writes[of].args[1],), {"dtype": to}) for of, to in kept]
        for pair in zip(kept.values(), new, strict=True):
            graph.call_function(aten.copy_.default, pair)
    for view in graph.find_nodes(op="call_function", target=aten.view.default) if kept else ():
        view.target = aten.reshape.default  # a kept cast's rows are padded, the traced ones were not
    traced.recompile()
    return [(inputs.index(of), dtype) for of, dtype in kept]
