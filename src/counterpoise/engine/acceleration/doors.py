"""Whether each accelerator is used. To switch one off, let its function here return False: nothing else has to change.

Training then takes longer and gives the same numbers, up to rounding if kernels or compiled steps are switched off.
"""

from __future__ import annotations

import torch

from counterpoise.engine.acceleration.convolution import available

__all__ = ["use_compiled_steps", "use_cuda_graphs", "use_kernels", "use_scripted_steps"]


def use_cuda_graphs(device: torch.device) -> bool:
    """Whether a chunk's phases are captured as CUDA graphs. Compiled steps need them."""
    return device.type == "cuda"


def use_compiled_steps(kind: str, backend: str) -> bool:
    """Whether `Engine(compile=True)` is followed on this kind of device."""
    return kind == "cuda" and backend == "batched" and available()


def use_kernels(kind: str, backend: str, dtype: str) -> bool:
    """Whether convolutions of a stack of clients may be our Triton kernels instead of torch's grouped ones."""
    return kind == "cuda" and backend == "batched" and dtype == "float32" and available()


def use_scripted_steps(kind: str, unkeyed: bool) -> bool:
    """Whether frequent steps may be scripted. With `unkeyed`, a step draws random numbers that a script would fix."""
    return kind == "cpu" and not unkeyed
