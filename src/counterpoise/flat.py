"""The flat vector: a model's trainable parameters, end to end, and where each one lies in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor, nn

__all__ = ["Layout", "raw_bytes"]


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the trainable parameters, in the order in which they are laid out.

    >>> layout = Layout.of(nn.Linear(3, 2))
    >>> layout.size, layout.names
    (8, ('weight', 'bias'))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of a module; a tied parameter is counted once, frozen ones not at all."""
        trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        return cls(tuple(n for n, _ in trainable), tuple(tuple(p.shape) for _, p in trainable))

    @cached_property
    def sizes(self) -> list[int]:
        return [prod(shape) for shape in self.shapes]

    @property
    def size(self) -> int:
        """The number of trainable parameters, D."""
        return sum(self.sizes)

    @cached_property
    def layers(self) -> Tensor:
        """For each of the D places, the number of its layer: the module that owns the parameter."""
        owners = [name.rpartition(".")[0] for name in self.names]
        numbers = {owner: i for i, owner in enumerate(dict.fromkeys(owners))}
        return torch.repeat_interleave(torch.tensor([numbers[o] for o in owners]), torch.tensor(self.sizes))

    def flatten(self, tensors: Iterable[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(-1) for tensor in tensors])

    def unflatten(self, vector: Tensor) -> Sequence[Tensor]:
        """Views of the vector in the parameters' shapes. One `split`: its gradient is one `cat`."""
        return [v.view(s) for v, s in zip(torch.split(vector, self.sizes), self.shapes, strict=True)]


def raw_bytes(tensor: Tensor) -> bytes:
    """A tensor's numbers as they lie in memory, of any type and strides, for digests."""
    return tensor.detach().cpu().flatten().clone().view(torch.uint8).numpy().tobytes()
