"""The outputs of stacked models in evaluation mode, on a GPU captured as CUDA graphs."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import torch
from torch import Tensor

from counterpoise.engine.acceleration.graphs import CapturedGraph
from counterpoise.engine.backends.chunks import together
from counterpoise.engine.clients.network import Network
from counterpoise.trees import align, fill, leaves, own, select

__all__ = ["Forward"]

_SAMPLES = 2**13
"""The most outputs computed at once; more would take memory, not less time."""
_OFTEN, _MOST_KEPT = 3, 8
"""How many calls with the same shapes come before a capture, and how many captures are kept: each holds memory."""


class Forward:
    """The outputs of models ``[M, D]`` on the same inputs ``[B, ...]``, or each on inputs of its own ``[M, B, ...]``."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._met: Counter[Any] = Counter()
        self._captured: dict[Any, CapturedGraph] = {}

    def __call__(self, models: Tensor, inputs: Any, *, shared: bool, captures: bool) -> Tensor:
        models = align(models) if models.is_cuda else models  # then a capture changes no bit
        at_once = max(1, _SAMPLES // max(1, next(leaves(inputs)).shape[0 if shared else 1]))
        parts = []
        for begin in range(0, len(models), at_once):
            some = slice(begin, begin + at_once)
            given = (models[some], inputs if shared else select(inputs, some))
            parts.append(self._captured_outputs(*given, shared) if captures else self._outputs(*given, shared))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _outputs(self, models: Tensor, inputs: Any, shared: bool) -> Tensor:
        return together(self._network, (0, None if shared else 0), models, inputs)

    def _captured_outputs(self, models: Tensor, inputs: Any, shared: bool) -> Tensor:
        form = (shared, *((t.shape, t.dtype) for t in leaves((models, inputs))))
        self._met[form] += 1
        if self._met[form] < _OFTEN:
            return self._outputs(models, inputs, shared)
        graph = self._captured.pop(form, None)
        if graph is None:
            while len(self._captured) >= _MOST_KEPT:
                del self._captured[next(iter(self._captured))]
            buffers = (align(models), own(inputs))
            graph = CapturedGraph(partial(self._outputs, shared=shared), *buffers)
        self._captured[form] = graph
        fill(graph.arguments, (models, inputs))
        return own(graph())  # type: ignore[no-any-return]
