"""Convolutions of a stack of clients against torch's, with their first and second derivatives."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F

from counterpoise.engine.acceleration.convolution import Lowered
from counterpoise.engine.acceleration.convolution.stacked import Convolve

# clients, batch, channels, height, width, outputs, kernel, stride, padding, dilation
GEOMETRIES = [
    (3, 4, 2, 9, 8, 5, 3, 1, 0, 1),
    (2, 3, 1, 10, 10, 6, 5, 1, 2, 1),
    (3, 2, 4, 9, 9, 3, 3, 2, 1, 1),
    (2, 2, 3, 12, 11, 4, 3, 2, 1, 2),
    (2, 2, 32, 6, 6, 20, 3, 1, 1, 1),
    (4, 2, 8, 8, 8, 16, 1, 2, 0, 1),
    (2, 2, 16, 7, 6, 20, 3, 1, 0, 1),
    (2, 2, 17, 9, 8, 5, 3, 2, 0, 2),
]


def derivatives(geometry: tuple[int, ...], lowered: bool, device: str, dtype: torch.dtype) -> list[Tensor]:
    """The gradients of a function of a convolution by picture, kernel and bias, and a product with its Hessian."""
    clients, batch, channels, height, width, outputs, kernel, *options = geometry
    torch.manual_seed(1)
    x, w, b = (
        torch.randn(shape, dtype=torch.float64).to(device, dtype)
        for shape in (
            (clients, batch, channels, height, width),
            (clients, outputs, channels, kernel, kernel),
            (clients, outputs),
        )
    )

    def value(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        if not lowered:
            return F.conv2d(x, w, b, *options).sin().sum()
        with Lowered():
            return F.conv2d(x, w, b, *options).sin().sum()

    def turned(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        dx, dw, _ = grad(value, (0, 1, 2))(x, w, b)
        return (dx * x.detach().cos()).sum() + (dw * w.detach()).sum()

    first = vmap(grad(value, (0, 1, 2)))(x, w, b)
    return [*first, *vmap(grad(turned, (0, 1)))(x, w, b)]


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_a_lowered_convolution_and_its_derivatives_are_torchs(geometry):
    ours, theirs = (derivatives(geometry, lowered, "cpu", torch.float64) for lowered in (True, False))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.gpu
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_the_kernels_compute_what_torch_does(geometry):
    ours = derivatives(geometry, True, "cuda", torch.float32)
    theirs = derivatives(geometry, False, "cpu", torch.float64)
    for a, b in zip(ours, theirs, strict=True):
        assert (a.cpu().double() - b).norm() <= 1e-4 * b.norm()


@pytest.mark.parametrize(
    "left",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv1d(4, 4, 3),
        nn.ConvTranspose2d(4, 4, 3),
    ],
)
def test_other_convolutions_are_left_to_torch(left, monkeypatch):
    monkeypatch.setattr(Convolve, "apply", lambda *_: pytest.fail("taken over"))
    x = torch.randn(2, 4, 8, 8) if "2d" in type(left).__name__ else torch.randn(2, 4, 8)
    with Lowered():
        assert torch.equal(left(x), left(x))


def test_a_padding_mode_of_the_users_is_kept():
    torch.manual_seed(0)
    layer, x = nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), torch.randn(2, 2, 6, 6)
    with Lowered():
        ours = layer(x)
    assert torch.allclose(ours, layer(x), atol=1e-6)


INTERPRETED = """
import sys, torch
from counterpoise.engine.acceleration.convolution.kernels import launch
from counterpoise.engine.acceleration.convolution.geometry import Geometry
from counterpoise.engine.acceleration.convolution.stacked import _grouped
for c, b, i, h, w, o, k, s, p, d in eval(sys.argv[1]):
    geometry = Geometry((s, s), (p, p), (d, d), (h, w), (k, k))
    x, kernel, y = torch.randn(c, b, i, h, w), torch.randn(c, o, i, k, k), torch.randn(c, b, o, *geometry.outcome)
    for what, first, second in (("output", x, kernel), ("input", y, kernel), ("kernel", y, x)):
        right = _grouped(what, first.double(), second.double(), geometry)
        assert (launch(what, first, second, geometry, False) - right).norm() < 1e-5 * right.norm(), what
"""


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton, which torch for CPUs comes without"
)
def test_the_kernels_are_right_in_tritons_interpreter():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", INTERPRETED, repr(GEOMETRIES)], check=True, env=environment)
