"""Convolution of a stack of clients as a function that can be differentiated any number of times and mapped.

With x ``[C, B, I, H, W]``, a kernel w ``[C, O, I, KH, KW]`` and y ``[C, B, O, P, Q]`` of one client:

    y[b,o,p,q]   = sum_{i,k,l} x[b,i,h,v] w[o,i,k,l]      with  h = p s - pad + k d, and likewise v
    dx[b,i,h,v]  = sum_{o,k,l} dy[b,o,p,q] w[o,i,k,l]
    dw[o,i,k,l]  = sum_{b,p,q} dy[b,o,p,q] x[b,i,h,v]

Each is linear in both of its arguments, and its derivatives are the other two: so three functions
whose backward passes call each other are closed under differentiation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

from counterpoise.engine.acceleration.convolution.geometry import Geometry, shape_of

__all__ = ["Convolve"]


def _mapped(function: type[Function], info: Any, dims: Sequence[int | None], *arguments: Any) -> tuple[Tensor, int]:
    """The rule for `vmap`: the mapped axis is merged with the clients' axis."""
    *_, geometry = arguments
    first, second = (
        x.unsqueeze(0).expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(arguments[:2], dims[:2], strict=True)
    )
    joined = function.apply(first.flatten(0, 1), second.flatten(0, 1), geometry)  # type: ignore[no-untyped-call]
    return joined.view(info.batch_size, -1, *joined.shape[1:]), 0


class Convolve(Function):
    """y of x and w."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
        return _launch("output", x, w, geometry)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.geometry = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, w = ctx.saved_tensors
        need_x, need_w, _ = ctx.needs_input_grad
        dx = _InputGradient.apply(dy, w, ctx.geometry) if need_x else None  # type: ignore[no-untyped-call]
        dw = _KernelGradient.apply(dy, x, ctx.geometry) if need_w else None  # type: ignore[no-untyped-call]
        return dx, dw, None

    @staticmethod
    def vmap(info: Any, dims: Sequence[int | None], *arguments: Any) -> tuple[Tensor, int]:
        return _mapped(Convolve, info, dims, *arguments)


class _InputGradient(Function):
    """dx of dy and w."""

    setup_context = Convolve.setup_context

    @staticmethod
    def forward(dy: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
        return _launch("input", dy, w, geometry)

    @staticmethod
    def backward(ctx: Any, ddx: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        dy, w = ctx.saved_tensors
        need_y, need_w, _ = ctx.needs_input_grad
        ddy = Convolve.apply(ddx, w, ctx.geometry) if need_y else None  # type: ignore[no-untyped-call]
        dw = _KernelGradient.apply(dy, ddx, ctx.geometry) if need_w else None  # type: ignore[no-untyped-call]
        return ddy, dw, None

    @staticmethod
    def vmap(info: Any, dims: Sequence[int | None], *arguments: Any) -> tuple[Tensor, int]:
        return _mapped(_InputGradient, info, dims, *arguments)


class _KernelGradient(Function):
    """dw of dy and x."""

    setup_context = Convolve.setup_context

    @staticmethod
    def forward(dy: Tensor, x: Tensor, geometry: Geometry) -> Tensor:
        return _launch("kernel", dy, x, geometry)

    @staticmethod
    def backward(ctx: Any, ddw: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        dy, x = ctx.saved_tensors
        need_y, need_x, _ = ctx.needs_input_grad
        ddy = Convolve.apply(x, ddw, ctx.geometry) if need_y else None  # type: ignore[no-untyped-call]
        dx = _InputGradient.apply(dy, ddw, ctx.geometry) if need_x else None  # type: ignore[no-untyped-call]
        return ddy, dx, None

    @staticmethod
    def vmap(info: Any, dims: Sequence[int | None], *arguments: Any) -> tuple[Tensor, int]:
        return _mapped(_KernelGradient, info, dims, *arguments)


def _launch(what: str, first: Tensor, second: Tensor, geometry: Geometry) -> Tensor:
    numbers = [n for pair in geometry for n in pair]
    tf32 = torch.backends.cuda.matmul.allow_tf32
    result: Tensor = torch.ops.counterpoise.stacked(what, first.contiguous(), second.contiguous(), numbers, tf32)
    return result


def _stacked(what: str, first: Tensor, second: Tensor, numbers: list[int], tf32: bool) -> Tensor:
    geometry = _geometry(numbers)
    if first.is_cuda and first.dtype in (torch.float32, torch.bfloat16):
        from counterpoise.engine.acceleration.convolution.kernels import launch  # needs Triton

        return launch(what, first, second, geometry, tf32)
    return _grouped(what, first, second, geometry)


def _empty(what: str, first: Tensor, second: Tensor, numbers: list[int], tf32: bool) -> Tensor:
    return first.new_empty(shape_of(what, first, second, _geometry(numbers)))


# Registered as a torch operation, so that a compiler leaves it as it is. `torch.library.custom_op` would do the same in
# fewer lines, but its first call loads torch's compiler, which takes seconds.
_LIBRARY = torch.library.Library("counterpoise", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("stacked(str what, Tensor first, Tensor second, int[] numbers, bool tf32) -> Tensor")  # type: ignore[no-untyped-call]
for _key, _function in (("CPU", _stacked), ("CUDA", _stacked), ("Meta", _empty)):
    _LIBRARY.impl("stacked", _function, _key)  # type: ignore[no-untyped-call]


def _geometry(numbers: list[int]) -> Geometry:
    return Geometry(*zip(numbers[::2], numbers[1::2], strict=True))


def _grouped(what: str, first: Tensor, second: Tensor, geometry: Geometry) -> Tensor:
    """The same with torch's grouped convolution, for devices and types that the kernels do not support."""
    shape = shape_of(what, first, second, geometry)
    clients, batch, channels = shape[:3]
    options = (geometry.stride, geometry.padding, geometry.dilation, len(first))
    first = first.transpose(0, 1).flatten(1, 2)
    result: Tensor
    if what == "kernel":
        x = second.transpose(0, 1).flatten(1, 2)
        result = conv2d_weight(x, (clients * shape[1], *shape[2:]), first, *options)  # type: ignore[no-untyped-call]
        return result.reshape(shape)
    if what == "output":
        result = F.conv2d(first, second.flatten(0, 1), None, *options)
    else:
        result = conv2d_input((batch, clients * channels, *shape[3:]), second.flatten(0, 1), first, *options)  # type: ignore[no-untyped-call]
    return result.reshape(batch, clients, *shape[2:]).transpose(0, 1).contiguous()
