"""A user's module as a function of the flat vector."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.engine.keyed import Keyed
from counterpoise.flat import Layout

__all__ = ["Network"]


class Network:
    """One private copy of a module, called with the parameters taken from a flat vector.

    Parameters are bound by assignment into the copy, which is cheaper than `functional_call` and
    works with and without `vmap`; so a copy belongs to one thread.
    """

    def __init__(self, module: nn.Module, layout: Layout, keyed: bool, train: bool) -> None:
        self.module = copy.deepcopy(module).train(train)
        self.layout = layout
        self.keyed = keyed
        places = {name: i for i, name in enumerate(layout.names)}
        owners = {id(p): places[n] for n, p in self.module.named_parameters() if n in places}
        self.slots = [
            (child._parameters, name, owners[id(p)])
            for child in self.module.modules()
            for name, p in child._parameters.items()
            if p is not None and id(p) in owners
        ]

    def __call__(self, w: Tensor, inputs: Any, key: Tensor | None = None, call: str = "forward") -> Tensor:
        tensors = self.layout.unflatten(w)
        for parameters, name, place in self.slots:
            parameters[name] = tensors[place]  # type: ignore[assignment]
        function = self.module if call == "forward" else getattr(self.module, call)
        if self.keyed:
            with Keyed(torch.zeros((), dtype=torch.int64, device=w.device) if key is None else key):
                return function(inputs)  # type: ignore[no-any-return]
        return function(inputs)  # type: ignore[no-any-return]
