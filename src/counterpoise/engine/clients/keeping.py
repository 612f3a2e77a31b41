"""An optimiser whose state a client keeps from round to round, as a part of the method.

A part's state is stored, checkpointed and restored after a refused reply; so the optimiser's state is too.
`Program` fills it, because hooks do not see the optimiser's state.
"""

from __future__ import annotations

from dataclasses import replace

from counterpoise.errors import CounterpoiseError
from counterpoise.local import Optimizer
from counterpoise.method import Method, Part

__all__ = ["KEPT", "keeping"]

KEPT = "kept-optimizer"
"""The name of that part."""


def keeping(method: Method, optimizer: Optimizer) -> Method:
    """The method, with a part that keeps the optimiser's state on clients if the optimiser says so."""
    if not optimizer.keep:
        return method
    if any(part.name == KEPT for part in method.parts):
        raise CounterpoiseError(f"A part cannot be called {KEPT!r}: the optimiser's state is stored under that name.")
    part = Part(KEPT, client_state=optimizer.init, when_lost="its optimiser starts anew")
    return replace(method, local=(*method.local, part))
