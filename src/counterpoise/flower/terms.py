"""What the server and a node must share, as messages give it: the version, the model's layers, its frozen weights."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from counterpoise.engine.rounds.trainer import Trainer
from counterpoise.errors import CounterpoiseError

__all__ = ["VERSION", "check_terms", "other_version", "show_version", "terms"]


def _installed() -> str:
    try:
        return version("counterpoise")
    except PackageNotFoundError:  # run from its sources
        return "0"


VERSION = [int(number) for number in re.findall(r"\d+", _installed())[:3]]
"""The version as a metric, which cannot be text."""


def terms(server: Trainer) -> dict[str, str]:
    """What a server's messages say about its version, its model and its samples."""
    told = {"version": show_version(VERSION), "samples": _samples(server), "layers": _layers(server)}
    return told | ({"frozen": server.frozen} if server.frozen else {})


def other_version(told: Mapping[str, Any]) -> str:
    """A sentence if the server runs another version of this library than this node; empty if it runs the same."""
    here, there = show_version(VERSION), told.get("version", "another version")
    sentence = f"This node runs counterpoise {here}, and the server {there}: install one version on both."
    return "" if here == there else sentence


def check_terms(here: Trainer, told: Mapping[str, Any], size: int) -> None:
    """Refuse to train a model that is not the server's, which has `size` parameters."""
    if here.layout.size != size:
        raise CounterpoiseError(
            f"The model on this node has {here.layout.size} parameters, and the server's has {size}. This node has "
            f"{_samples(here)}; the server has {told.get('samples', 'samples of its own')}. Both need the same model, "
            "samples of one shape, and the same classes: a node that does not hold all classes needs class_names=[...]."
        )
    if _layers(here) != told.get("layers", _layers(here)):
        raise CounterpoiseError(
            "The model on this node has other layers than the server's, or has them in another order, although both have "
            f"{size} parameters. Install the same version of the code that makes the model on all machines."
        )
    if here.frozen != told.get("frozen", ""):
        raise CounterpoiseError(
            "The frozen weights of the model on this node are not the server's. Load the same file of weights on the "
            "server and on all nodes."
        )


def show_version(sent: object) -> str:
    """The version that a node sent, as text; a node may send anything, or nothing."""
    whole = isinstance(sent, list) and len(sent) <= len(VERSION) and all(isinstance(one, int) for one in sent)
    return ".".join(map(str, sent)) if whole and isinstance(sent, list) else "of another version"


def _layers(trainer: Trainer) -> str:
    """A digest of the parameters' names and shapes, in order: an update means nothing to a model with other ones."""
    return hashlib.sha256(repr((trainer.layout.names, trainer.layout.shapes)).encode()).hexdigest()[:16]


def _samples(trainer: Trainer) -> str:
    held = trainer.federation
    return f"samples of shape {held.shape}" + ("" if held.classes is None else f" and {held.classes} classes")
