"""What the server and a node must have in common, as messages tell it: the model's size, its frozen weights, the version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from counterpoise.engine.rounds.trainer import Trainer
from counterpoise.errors import CounterpoiseError

__all__ = ["VERSION", "check_terms", "show_version", "terms"]


def _installed() -> str:
    try:
        return version("counterpoise")
    except PackageNotFoundError:  # run from its sources
        return "0"


VERSION = [int(number) for number in re.findall(r"\d+", _installed())[:3]]
"""The version as a metric, which cannot be text."""


def terms(server: Trainer) -> dict[str, str]:
    """What a server's messages say about its model and its samples."""
    return {"samples": _samples(server)} | ({"frozen": server.frozen} if server.frozen else {})


def check_terms(here: Trainer, told: Mapping[str, Any], size: int) -> None:
    """Refuse to train a model that is not the server's, which has `size` parameters."""
    if here.layout.size != size:
        raise CounterpoiseError(
            f"The model on this node has {here.layout.size} parameters, and the server's has {size}. This node has "
            f"{_samples(here)}; the server has {told.get('samples', 'samples of its own')}. Both need the same model, "
            "samples of one shape, and the same classes: a node that does not hold all classes needs class_names=[...]."
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


def _samples(trainer: Trainer) -> str:
    held = trainer.federation
    return f"samples of shape {held.shape}" + ("" if held.classes is None else f" and {held.classes} classes")
