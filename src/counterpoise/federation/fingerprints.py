"""A federation's fingerprint: a digest of its samples and of who holds them."""

from __future__ import annotations

import hashlib

import torch

from counterpoise.federation.assignment import Table
from counterpoise.federation.overview import Holder
from counterpoise.federation.structure import is_structured
from counterpoise.flat import pieces, raw_bytes
from counterpoise.trees import leaves, mapped

__all__ = ["fingerprint"]


def fingerprint(federation: Holder) -> str:
    """A digest of every sample and who holds it."""
    digest = hashlib.sha256()
    for samples in (federation.base, federation.test, federation.probe, federation.proxy):
        if samples is None:
            continue
        for value in (samples.inputs, samples.targets, samples.scale, samples.shift):
            if is_structured(value):
                digest.update(repr(mapped(lambda _: "", value)).encode())
            for tensor in leaves(value) if is_structured(value) else [torch.as_tensor(value)]:
                digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
                for piece in pieces(tensor):
                    digest.update(raw_bytes(piece))
        if samples.per_picture:
            digest.update(b"per picture")
    digest.update(f"{federation.classes} classes".encode())
    for held in (federation.train, federation.heldout):
        if isinstance(held, Table):
            digest.update(held.offsets.numpy().tobytes() + held.flat.numpy().tobytes())
        else:
            digest.update(repr(held).encode())
    return digest.hexdigest()[:16]
