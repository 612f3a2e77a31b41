"""Copy tensors to a device without waiting for the work that it is doing."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["put", "ready"]


def put(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device."""
    return ready(tensor, device).to(device, non_blocking=True)


def ready(tensor: Tensor, device: torch.device) -> Tensor:
    """Pin a CPU tensor that will go to a GPU, so that the copy need not wait."""
    return tensor.pin_memory() if device.type == "cuda" and not tensor.is_cuda else tensor
