"""The flat vector: a model's trainable parameters, end to end, and where each one lies in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import torch
from torch import Tensor, nn

__all__ = ["Layout", "pieces", "raw_bytes"]

_PIECE = 1 << 24
"""Arrays may be mapped files larger than the memory, so they are looked through in pieces of about this many bytes."""


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the trainable parameters, in the order in which they are laid out.

    >>> layout = Layout.of(nn.Linear(3, 2))
    >>> layout.size, layout.names
    (8, ('weight', 'bias'))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    output: int | None = None
    """The index of the layer nearest to the model's output, if a trial has shown it."""

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of a module. A tied parameter counts once, a frozen one not at all."""
        trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        return cls(tuple(n for n, _ in trainable), tuple(tuple(p.shape) for _, p in trainable))

    def ending(self, name: str | None) -> Layout:
        """This layout with the layer of the named parameter marked as the one nearest to the output."""
        return self if name is None else replace(self, output=self._numbers[self.names.index(name)])

    @cached_property
    def _numbers(self) -> list[int]:
        """The index of each parameter's layer."""
        owners = [name.rpartition(".")[0] for name in self.names]
        order = {owner: i for i, owner in enumerate(dict.fromkeys(owners))}
        return [order[owner] for owner in owners]

    @cached_property
    def sizes(self) -> list[int]:
        return [prod(shape) for shape in self.shapes]

    @property
    def size(self) -> int:
        """The number of trainable parameters, D."""
        return sum(self.sizes)

    @cached_property
    def layers(self) -> Tensor:
        """For each of the D entries, the index of its layer: the module that owns the parameter."""
        return torch.repeat_interleave(torch.tensor(self._numbers), torch.tensor(self.sizes))

    @cached_property
    def last(self) -> Tensor:
        """For each of the D entries, whether it is in the layer nearest to the output (if unknown, registered last)."""
        return self.layers == (self.layers.max() if self.output is None else self.output)

    def flatten(self, tensors: Iterable[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(-1) for tensor in tensors])

    def unflatten(self, vector: Tensor) -> Sequence[Tensor]:
        """Views of the vector in the parameters' shapes. It uses one `split`, because its gradient is one `cat`."""
        return [v.view(s) for v, s in zip(torch.split(vector, self.sizes), self.shapes, strict=True)]


def pieces(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor in parts, along its first axis."""
    if tensor.ndim == 0 or not tensor.numel():
        yield tensor
        return
    rows = max(1, _PIECE * len(tensor) // (tensor.numel() * tensor.element_size()))
    for first in range(0, len(tensor), rows):
        yield tensor[first : first + rows]


def raw_bytes(tensor: Tensor) -> bytes:
    """A tensor's values as raw bytes, for digests. Any type and strides will do."""
    return tensor.detach().cpu().flatten().clone().view(torch.uint8).numpy().tobytes()
