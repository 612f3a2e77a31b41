"""Batch norm of one client: statistics over the real samples of its batch, given and taken as tensors.

torch's layer counts padding and writes its running statistics into buffers that clients would share. In the private
copy of a model, each layer's `forward` is replaced by a `Normaliser`, which is told which samples are real. Running
statistics are tensors that the layers are given before a pass and that are taken from them after it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from counterpoise.engine.clients.statistics import initial_statistics
from counterpoise.errors import CounterpoiseError
from counterpoise.models.batch_norm import batch_norms

__all__ = ["Normaliser", "Norms"]


class Running(NamedTuple):
    """One layer's running statistics; the number of batches is not needed in evaluation."""

    mean: Tensor
    variance: Tensor
    batches: Tensor | None


class Norms:
    """The batch norms of a private copy of a model."""

    def __init__(self, module: nn.Module) -> None:
        self._layers = [Normaliser(name, layer) for name, layer in batch_norms(module).items()]
        self._channels = [layer.num_features for layer in batch_norms(module).values()]
        self.tracked = sum(self._channels) if initial_statistics(module) else 0
        """How many means, and as many variances, the layers keep."""

    def tell(self, share: Tensor | None) -> None:
        """Say how much each sample of the next batch counts."""
        for layer in self._layers:
            layer.share = share

    def give(self, mean: Tensor, variance: Tensor, batches: Tensor | None = None) -> None:
        """Set the running statistics of all layers. In training, the next passes move them; in evaluation, they are used."""
        means, variances = torch.split(mean, self._channels), torch.split(variance, self._channels)
        counts = [None for _ in self._layers] if batches is None else batches.unbind()
        for layer, *own in zip(self._layers, means, variances, counts, strict=True):
            layer.running = Running(*own)  # type: ignore[arg-type]

    def take(self) -> dict[str, Tensor]:
        """Take the running statistics away from the layers; later passes move none."""
        found = [layer.running for layer in self._layers if layer.running is not None]
        for layer in self._layers:
            layer.running = None
        return {
            "mean": torch.cat([one.mean for one in found]),
            "variance": torch.cat([one.variance for one in found]),
            "batches": torch.stack([one.batches for one in found if one.batches is not None]),
        }


class Normaliser:
    """What one layer does: ``(x - mean) / sqrt(variance + eps)``, scaled and shifted, channel by channel."""

    share: Tensor | None = None
    """``[B]`` how much each sample counts in the batch's mean, 0 for padding; None if all count alike."""
    running: Running | None = None
    """If None, the layer neither uses nor moves running statistics."""

    def __init__(self, name: str, layer: _BatchNorm) -> None:
        self._name, self._layer = name, layer
        layer.forward = self  # type: ignore[method-assign,assignment]

    def __call__(self, x: Tensor) -> Tensor:
        layer, kind = self._layer, x.dtype
        layer._check_input_dim(x)  # type: ignore[no-untyped-call]
        x = x.to(torch.promote_types(kind, torch.float32))
        fixed = None if layer.training else self.running
        mean = self._mean(x) if fixed is None else fixed.mean
        centred = x - _spread(mean, x)
        variance = self._mean(centred.square()) if fixed is None else fixed.variance
        if layer.training and self.running is not None:
            self.running = self._moved(self.running, mean.detach(), variance.detach(), x)
        scale = torch.rsqrt(variance + layer.eps)
        if layer.weight is None:
            return (centred * _spread(scale, x)).to(kind)
        return torch.addcmul(_spread(layer.bias, x), centred, _spread(scale * layer.weight, x)).to(kind)

    def _mean(self, x: Tensor) -> Tensor:
        """The mean of each channel over the batch's real samples and all positions."""
        if self.share is None:
            return x.mean((0, *range(2, x.ndim)))
        if len(self.share) != len(x):
            raise CounterpoiseError(
                f"The model's module {self._name or type(self._layer).__name__!r} is given {len(x)} rows for a batch of "
                f"{len(self.share)} samples. The first dimension of a batch norm's input must be the batch, so that "
                "padding does not count."
            )
        of_samples = x.flatten(2).mean(2) if x.ndim > 2 else x
        return (self.share[:, None] * of_samples).sum(0)  # not a matrix product, which a GPU may round to TF32

    def _moved(self, old: Running, mean: Tensor, variance: Tensor, x: Tensor) -> Running:
        """Running statistics after a batch, as torch moves them: by the variance with n - 1 in its denominator.

        A batch of one value has no such variance and moves nothing.
        """
        assert old.batches is not None
        samples = len(x) if self.share is None else (self.share > 0).sum()
        values = samples * x[0, 0].numel() + torch.zeros_like(old.batches)
        batches = old.batches + (values > 1)
        momentum = self._layer.momentum
        weight = 1 / batches.clamp(min=1) if momentum is None else torch.full_like(batches, momentum)
        weight = torch.where(values > 1, weight, 0)
        unbiased = variance * (values / (values - 1).clamp(min=1))
        return Running(
            old.mean + weight * (mean.to(old.mean) - old.mean),
            old.variance + weight * (unbiased.to(old.mean) - old.variance),
            batches,
        )


def _spread(values: Tensor, x: Tensor) -> Tensor:
    """A value for each channel, laid out to be combined with ``x``."""
    return values.view(1, -1, *(1,) * (x.ndim - 2))
