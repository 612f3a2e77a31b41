"""Group norm in place of batch norm, whose running statistics clients cannot share."""

from __future__ import annotations

import copy
from math import gcd

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from counterpoise.errors import takes_only_its_options
from counterpoise.models.copies import check_module

__all__ = ["with_group_norm"]


@takes_only_its_options()
def with_group_norm(model: nn.Module, groups: int = 32) -> nn.Module:
    """A copy of the model in which every batch norm is a group norm with the same scale and shift.

    A layer gets the largest number of groups that divides both `groups` and its channels and leaves
    at least two channels per group. Flat features (`BatchNorm1d`) get one group, which is a layer norm.

    >>> with_group_norm(nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6)))[1].num_groups
    2
    """
    check_module(model, "with_group_norm")
    model = copy.deepcopy(model)
    if isinstance(model, _BatchNorm):
        return _group_norm(model, groups)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _BatchNorm):
                setattr(parent, name, _group_norm(child, groups))
    return model


def _group_norm(norm: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = norm.num_features
    count = 1 if isinstance(norm, nn.BatchNorm1d) else gcd(groups, channels)
    if count == channels:  # with one channel per group, a 1 x 1 picture would become zero
        count = max(1, count // 2)
    new = nn.GroupNorm(count, channels, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        new = new.to(norm.weight)  # its device and precision
        with torch.no_grad():
            new.weight.copy_(norm.weight)
            new.bias.copy_(norm.bias)
    return new
