"""Pictures without a plotting library: PNG and SVG files, and text for a terminal."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from html import escape

import numpy as np

__all__ = ["ascii_picture", "grid", "heat_svg", "heat_text", "png", "shades"]

_RAMP = " .:-=+*#%@"
_BLOCKS = " ░▒▓█"


def png(pixels: np.ndarray) -> bytes:
    """Encode bytes ``[height, width, 3]`` as a PNG file."""
    height, width, _ = pixels.shape

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)  # 0: no filter
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def grid(pictures: np.ndarray, columns: int, gap: int = 2) -> np.ndarray:
    """Arrange pictures ``[N, C, H, W]`` of bytes, grey or colour, in rows: ``[height, width, 3]``."""
    count, channels, height, width = pictures.shape
    rows = -(-count // columns)
    sheet = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, 3), 255, np.uint8)
    for i, picture in enumerate(pictures if channels == 3 else pictures[:, :1].repeat(3, 1)):
        top, left = i // columns * (height + gap), i % columns * (width + gap)
        sheet[top : top + height, left : left + width] = picture.transpose(1, 2, 0)
    return sheet


def ascii_picture(picture: np.ndarray, width: int) -> list[str]:
    """Bytes ``[C, H, W]`` as lines of characters, `width` wide and half as high."""
    grey = picture.mean(0)
    height = max(1, round(width * grey.shape[0] / grey.shape[1] / 2))
    rows = np.arange(height) * grey.shape[0] // height
    columns = np.arange(width) * grey.shape[1] // width
    levels = (grey[rows][:, columns] * len(_RAMP) // 256).astype(int)
    return ["".join(_RAMP[level] for level in line) for line in levels]


def shades(values: np.ndarray) -> str:
    """Numbers from 0 to 1 as shaded blocks; every number above 0 is visible."""
    levels = np.where(values > 0, np.clip(np.ceil(values * 4), 1, 4), 0).astype(int)
    return "".join(_BLOCKS[level] for level in levels)


def heat_text(shares: np.ndarray, names: Sequence[str]) -> list[str]:
    """Shares ``[clients, labels]`` as text, with one line per label and one column per client."""
    wide = max(map(len, names))
    return [f"{name:>{wide}} {shades(shares[:, label])}" for label, name in enumerate(names)]


def heat_svg(shares: np.ndarray, sizes: np.ndarray, title: str, names: Sequence[str]) -> str:
    """Shares ``[clients, labels]`` as a drawing, with the labels' names and each client's size as a bar below."""
    clients, labels = shares.shape
    cell = max(2, min(24, 1200 // max(clients, 1)))
    row = max(6, min(24, 600 // labels))
    left, top, bars = max(60, 8 * max(map(len, names)) + 12), 40, 80
    width, height = left + clients * cell + 20, top + labels * row + bars + 50
    tall = sizes / max(int(sizes.max()), 1) * bars
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="20" font-size="13">{escape(title)}</text>',
    ]
    for label in range(0, labels, max(1, 12 // row)):
        parts.append(
            f'<text x="{left - 6}" y="{top + label * row + row / 2 + 4}" text-anchor="end">{escape(names[label])}</text>'
        )
    for client, label in zip(*shares.nonzero(), strict=True):
        parts.append(
            f'<rect x="{left + client * cell}" y="{top + label * row}" width="{cell}" height="{row}" '
            f'fill="#1f4e79" fill-opacity="{shares[client, label]:.3f}"/>'
        )
    base = top + labels * row + 10 + bars
    for client, high in enumerate(tall):
        parts.append(
            f'<rect x="{left + client * cell}" y="{base - high:.1f}" width="{max(1, cell - 1)}" '
            f'height="{high:.1f}" fill="#888"/>'
        )
    parts += [
        f'<text x="{left - 6}" y="{base}" text-anchor="end">size</text>',
        f'<text x="{left}" y="{base + 18}">{clients} clients; darker: a larger share of the client\'s samples; '
        f"largest client {int(sizes.max())}</text>",
        "</svg>",
    ]
    return "\n".join(parts)
