"""Ready-made experiments, one TOML file each."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

__all__ = ["preset_names"]


def preset_names() -> list[str]:
    """The names of the presets that come with the package, with their folders: ``fedbac/figure-3``."""
    return list(_all())


@functools.cache
def _all() -> tuple[str, ...]:
    return tuple(sorted(_names(resources.files(__name__))))


def _names(folder: Traversable, prefix: str = "") -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _names(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".toml"):
            yield prefix + entry.name.removesuffix(".toml")
