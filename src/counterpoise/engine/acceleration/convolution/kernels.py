"""The sums of `stacked` as Triton kernels: matrix products whose left side is gathered from the pictures.

One program computes one tile of one client. Sizes are constants of the compiled kernel, so that index
arithmetic is cheap. There are no atomics, so the sums are the same in every run.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

from counterpoise.engine.acceleration.convolution.geometry import Geometry, shape_of

__all__ = ["launch"]

_PROGRAMS = 1024
"""About how many programs keep a large GPU busy."""


@triton.jit  # type: ignore[untyped-decorator]
def _divided(h, v, H: tl.constexpr, W: tl.constexpr, DIV_H: tl.constexpr, DIV_W: tl.constexpr):  # type: ignore[no-untyped-def]
    """``h / DIV_H, v / DIV_W``, and whether both divisions are exact and the result lies inside the picture."""
    inside = (h >= 0) & (v >= 0)
    if DIV_H > 1:
        inside &= h % DIV_H == 0
        h = h // DIV_H
    if DIV_W > 1:
        inside &= v % DIV_W == 0
        v = v // DIV_W
    return h, v, inside & (h < H) & (v < W)


@triton.jit  # type: ignore[untyped-decorator]
def _gathered(  # type: ignore[no-untyped-def]
    pictures, weights, out,
    B: tl.constexpr, N_IN: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    N_OUT: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    MUL_H: tl.constexpr, MUL_W: tl.constexpr, OFF_H: tl.constexpr, OFF_W: tl.constexpr,
    DIL_H: tl.constexpr, DIL_W: tl.constexpr, DIV_H: tl.constexpr, DIV_W: tl.constexpr,
    WIDE: tl.constexpr, FREE: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``out[b,o,p,q] = sum_{i,k,l} pictures[b,i,(p MUL + OFF + k DIL) / DIV, ...] weights[k,l,i,o]``.

    Only terms whose division is exact count. If there are many channels (WIDE), the sum goes tap by tap over tiles of
    channels, which keeps index arithmetic out of the inner loop; otherwise it goes over channels and taps together,
    which wastes less of a tile. FREE says that every tap of every output lies inside the picture and DIV is 1, so
    that nothing has to be checked.
    """
    client = tl.program_id(1).to(tl.int64)
    pictures += client * (B * N_IN * H * W)
    weights += client * (N_OUT * N_IN * KH * KW)
    out += client * (B * N_OUT * P * Q)
    tiles_n: tl.constexpr = (N_OUT + TILE_N - 1) // TILE_N
    m = tl.program_id(0) // tiles_n * TILE_M + tl.arange(0, TILE_M)
    n = tl.program_id(0) % tiles_n * TILE_N + tl.arange(0, TILE_N)
    b, at = m // (P * Q), m % (P * Q)
    p, q = at // Q * MUL_H + OFF_H, at % Q * MUL_W + OFF_W
    real = m < B * P * Q
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    if WIDE:
        tiles_k: tl.constexpr = (N_IN + TILE_K - 1) // TILE_K
        for turn in range(0, KH * KW * tiles_k):
            tap = turn // tiles_k
            h, v = p + tap // KW * DIL_H, q + tap % KW * DIL_W
            inside = real
            if not FREE:
                h, v, there = _divided(h, v, H, W, DIV_H, DIV_W)
                inside &= there
            place = b * (N_IN * H * W) + h * W + v
            i = turn % tiles_k * TILE_K + tl.arange(0, TILE_K)
            left = tl.load(
                pictures + place[:, None] + (i * (H * W))[None, :],
                mask=inside[:, None] & (i < N_IN)[None, :],
                other=0.0,
            )
            factors = tl.load(
                weights + ((tap * N_IN + i) * N_OUT)[:, None] + n[None, :],
                mask=(i < N_IN)[:, None] & (n < N_OUT)[None, :],
                other=0.0,
            )
            total = tl.dot(left, factors, total, input_precision=PRECISION)
    else:
        for start in range(0, N_IN * KH * KW, TILE_K):
            j = start + tl.arange(0, TILE_K)
            i, tap = j // (KH * KW), j % (KH * KW)
            down, right = tap // KW * DIL_H, tap % KW * DIL_W
            inside = real[:, None] & (j < N_IN * KH * KW)[None, :]
            if FREE:
                place = (b * (N_IN * H * W) + p * W + q)[:, None] + (i * (H * W) + down * W + right)[None, :]
            else:
                h, v = p[:, None] + down[None, :], q[:, None] + right[None, :]
                h, v, there = _divided(h, v, H, W, DIV_H, DIV_W)
                inside &= there
                place = ((b * N_IN)[:, None] + i[None, :]) * (H * W) + h * W + v
            left = tl.load(pictures + place, mask=inside, other=0.0)
            factors = tl.load(
                weights + ((tap * N_IN + i) * N_OUT)[:, None] + n[None, :],
                mask=(j < N_IN * KH * KW)[:, None] & (n < N_OUT)[None, :],
                other=0.0,
            )
            total = tl.dot(left, factors, total, input_precision=PRECISION)
    place = (b * N_OUT * P * Q + at)[:, None] + (n * P * Q)[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=real[:, None] & (n < N_OUT)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _correlated(  # type: ignore[no-untyped-def]
    outcomes, pictures, out,
    B: tl.constexpr, N_IN: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    N_OUT: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    MUL_H: tl.constexpr, MUL_W: tl.constexpr, OFF_H: tl.constexpr, OFF_W: tl.constexpr,
    DIL_H: tl.constexpr, DIL_W: tl.constexpr, SPLIT: tl.constexpr, PARTS: tl.constexpr, TILES: tl.constexpr, WIDE: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``out[part,o,(i,k,l)] = sum_{(b,p,q) in part} outcomes[b,o,p,q] pictures[b,i,p MUL + OFF + k DIL, ...]``.

    If there are many channels (WIDE), a tile holds channels at one tap; otherwise it holds channels and taps together.
    """
    client = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1)
    outcomes += client * (B * N_OUT * P * Q)
    pictures += client * (B * N_IN * H * W)
    out += (client * PARTS + part) * (N_OUT * N_IN * KH * KW)
    if WIDE:
        tiles_i: tl.constexpr = (N_IN + TILE_N - 1) // TILE_N
        tile = tl.program_id(0) % TILES
        tap = tile // tiles_i
        i = tile % tiles_i * TILE_N + tl.arange(0, TILE_N)
        j = i * (KH * KW) + tap
        known = i < N_IN
    else:
        j = tl.program_id(0) % TILES * TILE_N + tl.arange(0, TILE_N)
        i, tap = j // (KH * KW), j % (KH * KW)
        known = j < N_IN * KH * KW
    o = tl.program_id(0) // TILES * TILE_M + tl.arange(0, TILE_M)
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    for start in range(0, SPLIT, TILE_K):
        m = part * SPLIT + start + tl.arange(0, TILE_K)
        b, at = m // (P * Q), m % (P * Q)
        p, q = at // Q * MUL_H + OFF_H, at % Q * MUL_W + OFF_W
        real = m < B * P * Q
        if WIDE:
            h, v = p + tap // KW * DIL_H, q + tap % KW * DIL_W
            inside = real & (h >= 0) & (v >= 0) & (h < H) & (v < W)
            place = (b * (N_IN * H * W) + h * W + v)[:, None] + (i * (H * W))[None, :]
            right = tl.load(pictures + place, mask=inside[:, None] & known[None, :], other=0.0)
        else:
            h = p[:, None] + (tap // KW * DIL_H)[None, :]
            v = q[:, None] + (tap % KW * DIL_W)[None, :]
            inside = real[:, None] & known[None, :] & (h >= 0) & (v >= 0) & (h < H) & (v < W)
            place = ((b * N_IN)[:, None] + i[None, :]) * (H * W) + h * W + v
            right = tl.load(pictures + place, mask=inside, other=0.0)
        left = tl.load(
            outcomes + (b * N_OUT * P * Q + at)[None, :] + (o * P * Q)[:, None],
            mask=real[None, :] & (o < N_OUT)[:, None],
            other=0.0,
        )
        total = tl.dot(left, right, total, input_precision=PRECISION)
    place = (o * N_IN * KH * KW)[:, None] + j[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=(o < N_OUT)[:, None] & known[None, :])


_WIDE = 16
"""From this many channels on, a tile holds channels of one tap. Also the shortest side of a tile."""


def _tile(size: int, most: int) -> int:
    return min(most, max(_WIDE, 1 << (size - 1).bit_length()))


# The tiles, warps and stages below were the fastest of some 1200 combinations on an H200.
_ROWS, _STAGES = 128, 2


def launch(what: str, first: Tensor, second: Tensor, geometry: Geometry, tf32: bool) -> Tensor:
    """Compute y from x and w, dx from dy and w, or dw from dy and x."""
    shape = shape_of(what, first, second, geometry)
    precision = "tf32" if tf32 else "ieee"
    (s, t), (a, b), (d, e) = geometry.stride, geometry.padding, geometry.dilation
    kernel, clients, batch = geometry.kernel, len(first), first.shape[1]
    taps = kernel[0] * kernel[1]
    if what == "kernel":
        return _launch_correlated(first, second, shape, geometry, precision)
    out = first.new_empty(shape)
    inner, outer = first.shape[2], shape[2]
    if what == "output":
        index, weights = (s, t, -a, -b, d, e, 1, 1), second.permute(0, 3, 4, 2, 1)
    else:
        index, weights = (1, 1, a, b, -d, -e, s, t), second.permute(0, 3, 4, 1, 2)
    wide, free, half = inner >= _WIDE, what == "output" and not a and not b, first.dtype != torch.float32
    depth = (64 if half else 16) if wide else 32
    tile_n, tile_k = _tile(outer, 64), _tile(inner if wide else inner * taps, depth)
    rows = batch * shape[3] * shape[4]
    grid = (triton.cdiv(rows, _ROWS) * triton.cdiv(outer, tile_n), clients)
    warps = 2 if tf32 and not half else 4
    _gathered[grid](
        first, weights.contiguous(), out, batch, inner, *first.shape[3:], outer, *shape[3:], *kernel, *index, wide, free,
        _ROWS, tile_n, tile_k, precision, num_warps=warps, num_stages=_STAGES,
    )  # fmt: skip
    return out


def _launch_correlated(dy: Tensor, x: Tensor, shape: tuple[int, ...], geometry: Geometry, precision: str) -> Tensor:
    clients, batch, outer = dy.shape[:3]
    inner, taps = shape[2], shape[3] * shape[4]
    (s, t), (a, b), (d, e) = geometry.stride, geometry.padding, geometry.dilation
    wide = inner >= _WIDE
    tile_m, tile_n = _tile(outer, 64), _tile(inner, 64) if wide else _tile(inner * taps, 32)
    tile_k = 32 if dy.dtype == torch.float32 else 64
    rows = batch * dy.shape[3] * dy.shape[4]
    columns = taps * triton.cdiv(inner, tile_n) if wide else triton.cdiv(inner * taps, tile_n)
    tiles = columns * triton.cdiv(outer, tile_m)
    parts = max(1, min(_PROGRAMS // (tiles * clients), rows // (4 * tile_k)))
    split = triton.cdiv(triton.cdiv(rows, parts), tile_k) * tile_k
    parts = triton.cdiv(rows, split)
    out = dy.new_empty(clients, parts, *shape[1:], dtype=torch.float32 if parts > 1 else dy.dtype)
    _correlated[(tiles, parts, clients)](
        dy, x, out, batch, inner, *x.shape[3:], outer, *dy.shape[3:], *geometry.kernel,
        s, t, -a, -b, d, e, split, parts, columns, wide, tile_m, tile_n, tile_k, precision, num_warps=4, num_stages=_STAGES,
    )  # fmt: skip
    return out.sum(1).to(dy.dtype) if parts > 1 else out.squeeze(1)
