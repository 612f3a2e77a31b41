"""Digests by which two models are told apart: of what they are made of, and of the weights that are not trained."""

from __future__ import annotations

import hashlib

from torch import nn

from counterpoise.flat import pieces, raw_bytes
from counterpoise.models.copies import layer_settings
from counterpoise.models.lora import LowRank

__all__ = ["form_digest", "frozen_digest"]


def form_digest(module: nn.Module) -> str:
    """A digest of everything but numbers: layers, their settings, names, shapes, and what is trained.

    >>> form_digest(nn.Linear(2, 3)) == form_digest(nn.Linear(2, 3)) != form_digest(nn.Linear(3, 2))
    True
    """
    shapes = [(name, tuple(tensor.shape)) for name, tensor in module.state_dict().items()]
    trained = [name for name, p in module.named_parameters() if p.requires_grad]
    return hashlib.sha256(repr((layer_settings(module), shapes, trained)).encode()).hexdigest()[:16]


def frozen_digest(module: nn.Module, drawn: bool = True) -> str:
    """A digest of the frozen parameters; empty if there are none.

    Without `drawn`, the random factors of adapters do not count: they may follow from a run's seed.
    """
    factors = {id(layer.down) for layer in module.modules() if isinstance(layer, LowRank) and not drawn}
    frozen = [(name, p) for name, p in module.named_parameters() if not (p.requires_grad or id(p) in factors)]
    digest = hashlib.sha256()
    for name, parameter in frozen:
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        for piece in pieces(parameter.detach()):
            digest.update(raw_bytes(piece))
    return digest.hexdigest()[:16] if frozen else ""
