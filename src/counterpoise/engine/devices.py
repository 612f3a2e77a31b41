"""Tensors to a device, without waiting for what the device is doing."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["put", "ready"]


def put(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device."""
    return ready(tensor, device).to(device, non_blocking=True)


def ready(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor from where it can be copied to a device at any time."""
    return tensor.pin_memory() if device.type == "cuda" and not tensor.is_cuda else tensor
