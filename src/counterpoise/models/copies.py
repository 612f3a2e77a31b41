"""What modules have in common: copies that share what is not trained, and the settings of their layers."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from counterpoise.errors import CounterpoiseError, brief
from counterpoise.replicas import replica

__all__ = ["check_module", "layer_settings", "sharing_copy"]


def check_module(given: object, taker: str, such_as: str = "cp.models.mlp(fed.shape, fed.classes)") -> None:
    """Refuse what is no module, such as a factory or a name."""
    if not isinstance(given, nn.Module):
        raise CounterpoiseError(f"{taker} takes a module, such as {such_as}, not {brief(given)}.")


def sharing_copy(
    module: nn.Module,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    trained: Collection[nn.Parameter] | None = None,
    buffers: bool = False,
) -> nn.Module:
    """A copy of a module whose frozen parameters lie in the module's own memory.

    On another device, or in another precision, all such copies share one replica. A large frozen base is then held
    once, however many copies there are. Nobody may write to it. If `trained` is given, all other parameters are shared
    and frozen. With `buffers`, buffers are shared too, which is for copies that leave them as they are.
    """
    own = {id(p) for p in (trained if trained is not None else filter(_requires_grad, module.parameters()))}
    shared: dict[int, Any] = {
        id(p): nn.Parameter(replica(p.detach(), device, dtype), requires_grad=False)
        for p in module.parameters()
        if id(p) not in own
    }
    if buffers:
        shared |= {id(held): replica(held, device, dtype).detach() for held in module.buffers()}
    made = copy.deepcopy(module, shared)
    return made if device is None and dtype is None else made.to(device=device, dtype=dtype)


def _requires_grad(parameter: nn.Parameter) -> bool:
    return parameter.requires_grad


def layer_settings(module: nn.Module) -> list[tuple[str, list[tuple[str, object]]]]:
    """The plain values that a module's layers were made with, by their names: kernel sizes, heads, scales.

    >>> dict(layer_settings(nn.Dropout(0.5))[0][1])
    {'inplace': False, 'p': 0.5}
    """
    return [
        (type(layer).__qualname__, sorted((key, v) for key, v in vars(layer).items() if _is_setting(key, v)))
        for layer in module.modules()
    ]


def _is_setting(name: str, value: object) -> bool:
    plain = value if isinstance(value, tuple) else (value,)
    return (
        not name.startswith("_") and name != "training" and all(isinstance(v, bool | int | float | str) for v in plain)
    )
