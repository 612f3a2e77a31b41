"""CUDA graphs that run on a CPU."""

import torch

from counterpoise.engine.acceleration import graphs
from counterpoise.engine.backends import chunks, forward
from counterpoise.trees import fill, own


class Played:
    """A `CapturedGraph` without a GPU: what it gives lies in the same buffers after every call."""

    def __init__(self, function, *arguments, into=None, compiled=False, pool=None):
        assert pool is None or into is not None, "a result in a shared pool is overwritten"
        self.function, self.arguments, self.into = function, arguments, into
        before = own(arguments)
        given = function(*arguments)
        fill(arguments, before)  # a recording tries its phase, and what it tried is not to be seen
        self.result = own(given) if into is None else into
        if compiled:
            self.kernels = graphs.Compiled(lambda *given: fill(given[-1], function(*given)), *arguments)
            self.kernels()
            fill(arguments, before)
        self.compiled = compiled

    def __call__(self):
        if self.compiled:
            self.kernels()
        else:
            fill(self.result, self.function(*self.arguments))
        return self.result

    def renew(self):
        if self.compiled:
            self.kernels.renew()


def play(monkeypatch, kind=Played):
    """Let backends that capture do so on a CPU."""
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    for module in (chunks, forward):
        monkeypatch.setattr(module, "CapturedGraph", kind)
