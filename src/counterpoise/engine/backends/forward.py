"""The outputs of models in evaluation mode, on a GPU captured as CUDA graphs."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from counterpoise.engine.acceleration.graphs import CapturedGraph
from counterpoise.engine.backends.chunks import together
from counterpoise.engine.clients.network import Network
from counterpoise.errors import CounterpoiseError
from counterpoise.trees import align, fill, leaves, own, select

__all__ = ["Forward"]

log = logging.getLogger(__name__)

_SAMPLES = 2**13
"""The most outputs computed at once; more would take more memory but not less time."""
_OFTEN, _MOST_KEPT = 3, 8
"""How many calls with the same shapes come before a capture, and how many captures are kept: each holds memory."""
Kind = Literal["alone", "shared", "own"]
"""One model, a stack of them on the same inputs, or a stack in which each has inputs of its own."""


class Forward:
    """The outputs of models ``[M, D]`` on the same inputs ``[B, ...]``, or each on inputs of its own ``[M, B, ...]``."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._met: Counter[Any] = Counter()
        self._captured: dict[Any, CapturedGraph] = {}
        self._calls = 0
        self._last: dict[Any, int] = {}
        """The last call with each form."""
        self._refused = False
        """Whether a capture failed."""

    def __call__(self, models: Tensor, inputs: Any, *, shared: bool, captures: bool) -> Tensor:
        kind: Kind = "shared" if shared else "own"
        at_once = max(1, _SAMPLES // max(1, next(leaves(inputs)).shape[0 if shared else 1]))
        parts = []
        for begin in range(0, len(models), at_once):
            some = slice(begin, begin + at_once)
            parts.append(self._outputs(kind, models[some], inputs if shared else select(inputs, some), captures))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def alone(self, model: Tensor, inputs: Any, *, captures: bool) -> Tensor:
        """The outputs of one model ``[D]``."""
        return self._outputs("alone", model, inputs, captures)

    def _outputs(self, kind: Kind, models: Tensor, inputs: Any, captures: bool) -> Tensor:
        models = align(models) if models.is_cuda else models  # as a capture does, so that capturing changes no bit
        graph = self._graph(kind, models, inputs) if captures and not self._refused else None
        if graph is None:
            return self._compute(kind, models, inputs)
        fill(graph.arguments, (models, inputs))
        return own(graph())  # type: ignore[no-any-return]

    def _compute(self, kind: Kind, models: Tensor, inputs: Any) -> Tensor:
        if kind == "alone":
            # On a GPU, recurrent layers stay unrolled: torch's own need weights that lie together in memory.
            return self._network(models, inputs, alone=not models.is_cuda)
        return together(self._network, (0, None if kind == "shared" else 0), models, inputs)

    def _graph(self, kind: Kind, models: Tensor, inputs: Any) -> CapturedGraph | None:
        """The captured graph for tensors of this form; None while the form is rare, or if there is no room for it."""
        form = (kind, *((t.shape, t.dtype) for t in leaves((models, inputs))))
        before, self._calls = self._last.get(form, 0), self._calls + 1
        self._last[form] = self._calls
        self._met[form] += 1
        graph = self._captured.pop(form, None)
        if graph is None and self._met[form] >= _OFTEN and self._make_room(before):
            try:
                graph = CapturedGraph(partial(self._compute, kind), align(models), own(inputs))
            except (CounterpoiseError, MemoryError) as error:
                log.info("Outputs are not captured, because: %s", error)
                self._refused = True
                self._captured.clear()
        if graph is not None:
            self._captured[form] = graph
        return graph

    def _make_room(self, before: int) -> bool:
        """Make room for a capture of a form that was last used in call `before`. Returns whether there is room.

        The least recently used capture is dropped only if its own last use was earlier than that. Otherwise a cycle of
        many forms would capture every one of them anew each time.
        """
        if len(self._captured) < _MOST_KEPT:
            return True
        oldest = next(iter(self._captured))
        if self._last[oldest] > before:
            return False
        del self._captured[oldest]
        return True
