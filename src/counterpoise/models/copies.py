"""Copies of a module that share what is not trained."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import torch
from torch import nn

__all__ = ["sharing_copy"]


def sharing_copy(
    module: nn.Module,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    trained: Collection[nn.Parameter] | None = None,
) -> nn.Module:
    """A copy of a module whose frozen parameters lie in the module's own memory, unless the device or type differs.

    A large frozen base is then held once, however many copies there are. Nobody may write to it. If `trained` is given,
    all other parameters are shared and frozen.
    """
    own = {id(p) for p in (trained if trained is not None else filter(_requires_grad, module.parameters()))}
    shared: dict[int, Any] = {
        id(p): nn.Parameter(p.detach().to(device, dtype if p.is_floating_point() else None), requires_grad=False)
        for p in module.parameters()
        if id(p) not in own
    }
    return copy.deepcopy(module, shared).to(device=device, dtype=dtype)


def _requires_grad(parameter: nn.Parameter) -> bool:
    return parameter.requires_grad
