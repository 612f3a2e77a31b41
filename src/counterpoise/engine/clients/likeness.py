"""Whether two runs' clients do the same work, so that they can train in one batch.

Hooks, losses and optimisers are functions, often made by other functions. Two of them are alike if they have the same
code and whatever they hold (closures, defaults, bound objects) is alike too.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from counterpoise.engine.clients.program import Program
from counterpoise.method import Method, Part

__all__ = ["alike", "client_hooks", "why_different"]

_CLIENT_HOOKS = ("begin", "survey", "loss", "gradient", "move", "after_step", "after_epoch", "finish", "client_state")
_CLIENT_FACTS = ("name", "reads", "second_order", "trace_every", "tracks", "private")


def alike(a: Any, b: Any) -> bool:
    """Whether two values are the same as far as a computation can tell.

    >>> def adder(n):
    ...     return lambda x: x + n
    >>> alike(adder(1), adder(1)), alike(adder(1), adder(2))
    (True, False)
    """
    return _alike(a, b, frozenset())


def _alike(a: Any, b: Any, seen: frozenset[tuple[int, int]]) -> bool:
    """`alike` inside nested values. `seen` holds the pairs being compared, because functions may form a cycle."""
    if a is b or (id(a), id(b)) in seen:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, types.FunctionType) and (a.__code__ is not b.__code__ or a.__globals__ is not b.__globals__):
        return False
    within = seen | {(id(a), id(b))}
    if (inside := _inside(a)) is not None and (other := _inside(b)) is not None:
        return len(inside) == len(other) and all(_alike(x, y, within) for x, y in zip(inside, other, strict=True))
    return isinstance(a, bool | int | float | str | bytes) and a == b


def _inside(value: Any) -> list[Any] | None:
    """What a value consists of, if it is of a kind that can be taken apart."""
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents if _filled(cell) else None for cell in value.__closure__ or ()]
        return [value.__defaults__, value.__kwdefaults__, cells]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, tuple | list):
        return list(value)
    if isinstance(value, Mapping):
        return [list(value), list(value.values())]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return None


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def why_different(a: Program, b: Program) -> str:
    """Why the clients of two runs cannot train in one batch; empty if they can. Their learning rates may differ."""
    one, other = a.local, b.local
    checks = {
        "their losses differ": alike(a.loss, b.loss),
        "their batch sizes differ": one.batch == other.batch,
        "their numbers of passes differ": one.passes == other.passes,
        "their clients have different memories": one.memory == other.memory,
        "their augmentations differ": alike(one.augment, other.augment),
        "their gradients are clipped at different lengths": one.clip == other.clip,
        "one changes the learning rate by round and the other by epoch": one.schedule.by_epoch
        == other.schedule.by_epoch,
        "their optimisers differ": _optimizer(a) == _optimizer(b) and alike(_code(a), _code(b)),
        "their methods do different things on clients": alike(client_hooks(a.method), client_hooks(b.method)),
        "their own hooks could read their learning rates, which differ": all(map(_ours, a.parts))
        or (one.optimizer.lr == other.optimizer.lr and alike(one.schedule.factor, other.schedule.factor)),
    }
    return next((reason for reason, same in checks.items() if not same), "")


def _optimizer(program: Program) -> tuple[float, bool, bool]:
    optimizer = program.local.optimizer
    return optimizer.weight_decay, optimizer.reach is None, optimizer.keep


def _code(program: Program) -> list[Any]:
    optimizer = program.local.optimizer
    return [optimizer.init, optimizer.step, optimizer.reach]


def client_hooks(method: Method) -> list[Any]:
    """All that a method does on clients, to be compared with `alike`."""
    names = (*_CLIENT_FACTS, *_CLIENT_HOOKS)
    return [[getattr(part, name) for name in names] for part in method.parts if part.on_client]


def _ours(part: Part) -> bool:
    """Whether all of a part's client hooks belong to this package. These read the learning rate from the client."""
    hooks = (getattr(part, name) for name in _CLIENT_HOOKS)
    return all((getattr(hook, "__module__", None) or "").startswith("counterpoise.") for hook in hooks if hook)
