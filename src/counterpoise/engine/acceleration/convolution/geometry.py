"""The shapes of a convolution of a stack of clients."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["Geometry", "shape_of"]

Pair = tuple[int, int]


class Geometry(NamedTuple):
    """All sizes of a convolution."""

    stride: Pair
    padding: Pair
    dilation: Pair
    picture: Pair
    """H, W"""
    kernel: Pair
    """KH, KW"""

    @property
    def outcome(self) -> Pair:
        """P, Q"""
        return tuple(  # type: ignore[return-value]
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, p, d, k, s in zip(self.picture, self.padding, self.dilation, self.kernel, self.stride, strict=True)
        )


def shape_of(what: str, first: Tensor, second: Tensor, geometry: Geometry) -> tuple[int, ...]:
    """The shape of y from x and w, of dx from dy and w, or of dw from dy and x."""
    clients, batch, channels = first.shape[:3]
    if what == "output":
        return (clients, batch, second.shape[1], *geometry.outcome)
    if what == "input":
        return (clients, batch, second.shape[2], *geometry.picture)
    return (clients, channels, second.shape[2], *geometry.kernel)
