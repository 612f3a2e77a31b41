"""Running statistics of a model's batch norms, which are not in its vector: read, write and keep them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from counterpoise.flat import Layout
from counterpoise.hooks import Tensors
from counterpoise.method import Method
from counterpoise.models.batch_norm import batch_norms, norm_of
from counterpoise.parts.statistics import averaged_statistics, own_norms, plausible_statistics

__all__ = ["STATISTICS", "initial_statistics", "keeping_statistics", "with_statistics", "write_statistics"]


STATISTICS = ("mean", "variance", "batches")
"""Means and variances ``[K]`` of all channels, layer after layer, and how many batches each layer has seen."""


def initial_statistics(module: nn.Module) -> dict[str, Tensor]:
    """The running statistics in a model's buffers.

    Empty if the model has no batch norms, or the norm chosen for it keeps no statistics.
    """
    layers = [layer for layer in batch_norms(module).values() if norm_of(module) != "batch"]
    if not layers:
        return {}
    kind = next(module.parameters())
    return {
        "mean": torch.cat([layer.running_mean for layer in layers]).to(kind),  # type: ignore[misc]
        "variance": torch.cat([layer.running_var for layer in layers]).to(kind),  # type: ignore[misc]
        "batches": torch.stack([layer.num_batches_tracked for layer in layers]).to(kind),  # type: ignore[misc]
    }


def write_statistics(module: nn.Module, statistics: Tensors) -> None:
    """Write running statistics into a model's buffers; nothing if there are none."""
    layers = list(batch_norms(module).values()) if statistics else []
    channels = [layer.num_features for layer in layers]
    each = (torch.split(statistics[name], channels) for name in ("mean", "variance") if layers)
    for layer, batches, mean, variance in zip(layers, statistics.get("batches", ()), *each, strict=True):
        layer.running_mean.copy_(mean)
        layer.running_var.copy_(variance)
        layer.num_batches_tracked.copy_(batches)


def with_statistics(models: Tensor, statistics: Tensors) -> Tensor:
    """Models ``[..., D]`` followed by the running statistics to evaluate them with, ``[..., D + 2K]``.

    The statistics are the same for all models or stacked like them. If there are none, nothing is added.
    """
    if not statistics:
        return models
    behind = (statistics[name].expand(*models.shape[:-1], -1) for name in ("mean", "variance"))
    return torch.cat((models, *behind), -1)


def keeping_statistics(method: Method, module: nn.Module) -> Method:
    """The method, with the parts that keep the batch norms' running statistics as the model's chosen norm says."""
    norm, initial = norm_of(module), initial_statistics(module)
    if norm == "local":
        return replace(method, local=(own_norms(initial, _places(module)), *method.local))
    if norm == "average":
        trust, update = (plausible_statistics(), *method.trust), (*method.update, averaged_statistics(initial))
        return replace(method, trust=trust, update=update)
    return method


def _places(module: nn.Module) -> Tensor:
    """Where the scales and shifts of a model's batch norms lie in its vector, on the model's device."""
    layout, own = Layout.of(module), {id(p) for layer in batch_norms(module).values() for p in layer.parameters()}
    names = {name for name, p in module.named_parameters() if id(p) in own}
    each = [torch.full((size,), name in names) for name, size in zip(layout.names, layout.sizes, strict=True)]
    return torch.cat(each).nonzero().squeeze(1).to(next(module.parameters()).device)
