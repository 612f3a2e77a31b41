"""A user's module as a function of its flat parameter vector."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.engine.clients.calling import outputs_of
from counterpoise.engine.clients.keyed import Keyed
from counterpoise.engine.clients.normalising import Norms
from counterpoise.engine.clients.recurrent import Unrolled, drops, recurs, unflatten_weights
from counterpoise.errors import CounterpoiseError
from counterpoise.flat import Layout
from counterpoise.models.copies import sharing_copy
from counterpoise.trees import mapped

__all__ = ["Network"]


class Network:
    """One private copy of a module, called with the parameters taken from a flat vector.

    Parameters are assigned into the copy, which is cheaper than `functional_call` and works with and without
    `vmap`; so a copy belongs to one thread. If batch norms keep running statistics, the vector for an evaluation ends
    with them (`with_statistics`). `stacked` says that the network is called for stacks of clients. With `half`, the
    module computes in bfloat16. Each of `modes` makes a context that the module runs in.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        keyed: bool,
        train: bool,
        *,
        stacked: bool = False,
        half: bool = False,
        modes: Sequence[Callable[[], AbstractContextManager[Any]]] = (),
    ) -> None:
        self.module = sharing_copy(module, dtype=torch.bfloat16 if half else None, buffers=True).train(train)
        self.layout = layout
        self.keyed, self.half, self.modes = keyed, half, modes
        self.unrolled = (stacked and recurs(module)) or (train and drops(module))
        if self.unrolled:
            unflatten_weights(self.module)
        self.norms = Norms(self.module)
        places = {name: i for i, name in enumerate(layout.names)}
        owners = {id(p): places[n] for n, p in self.module.named_parameters() if n in places}
        self.slots = [
            (child._parameters, name, owners[id(p)])
            for child in self.module.modules()
            for name, p in child._parameters.items()
            if p is not None and id(p) in owners
        ]

    def __call__(
        self,
        w: Tensor,
        inputs: Any,
        key: Tensor | None = None,
        call: str = "forward",
        share: Tensor | None = None,
        alone: bool = False,
    ) -> Tensor:
        """`share` says how much each sample counts, for batch norms; None if there is no padding.

        `alone` says that this call is for one model, even if the network is `stacked`.
        """
        precise = w.dtype
        if self.norms.tracked and not self.module.training:
            w, *statistics = torch.split(w, [self.layout.size, self.norms.tracked, self.norms.tracked])
            self.norms.give(*statistics)
        if self.half:
            w = w.to(torch.bfloat16)
            inputs = mapped(lambda t: t.to(torch.bfloat16) if t.is_floating_point() else t, inputs)
        tensors = self.layout.unflatten(w)
        for parameters, name, place in self.slots:
            parameters[name] = tensors[place]  # type: ignore[assignment]
        self.norms.tell(share)
        if not hasattr(self.module, call):
            raise CounterpoiseError(f"The model has no method {call!r}, whose output a hook asks for.")
        function = self.module if call == "forward" else getattr(self.module, call)
        with contextlib.ExitStack() as modes:
            for mode in self.modes:
                modes.enter_context(mode())
            if self.keyed:
                modes.enter_context(Keyed(torch.zeros((), dtype=torch.int64, device=w.device) if key is None else key))
            if self.unrolled and not alone:
                modes.enter_context(Unrolled())
            return outputs_of(function, inputs).to(precise)  # type: ignore[no-any-return]
