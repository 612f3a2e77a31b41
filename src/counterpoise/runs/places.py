"""Where each setting belongs, for the error message if a user put it elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from counterpoise.adversary import ADVERSARIES
from counterpoise.augment import AUGMENTS
from counterpoise.engine.scores import LOSSES
from counterpoise.errors import SYNONYMS
from counterpoise.federation import AVAILABILITIES, PARTITIONS, SKEWS
from counterpoise.local import OPTIMIZERS, SCHEDULES
from counterpoise.methods import METHODS
from counterpoise.models import MODELS
from counterpoise.registry import Registry

__all__ = ["CHOICES", "meant"]

CHOICES: dict[str, Registry[Any]] = {
    "method": METHODS,
    "model": MODELS,
    "loss": LOSSES,
    "cohort": AVAILABILITIES,
    "adversary": ADVERSARIES,
    "data.partition": PARTITIONS,
    "data.features": SKEWS,
    "local.optimizer": OPTIMIZERS,
    "local.schedule": SCHEDULES,
    "local.augment": AUGMENTS,
}
"""The settings that are choices, and what they choose from; also entries of the list `metrics`."""


def meant(path: Sequence[str], table: Any) -> list[str]:
    """The settings in `table` that have the name at the end of a path.

    If some are inside the table that the user wrote, only those count: ``local.lr`` means ``local.optimizer.lr``.
    """
    name = SYNONYMS.get(path[-1], path[-1])
    alike = dict.fromkeys(place for place in _places(table) if place.rpartition(".")[2] == name)
    found = sorted(alike, key=lambda place: not place.startswith("local."))  # users most often mean how clients train
    inside = [place for place in found if place.startswith("".join(f"{part}." for part in path[:-1]))]
    return inside or found


def _places(table: Any, prefix: str = "") -> Iterator[str]:
    for name, field in table.model_fields.items():
        place = prefix + (field.alias or name)
        if hasattr(field.annotation, "model_fields"):
            yield from _places(field.annotation, f"{place}.")
        elif place in CHOICES:
            yield place
            yield from (f"{place}.{option}" for entry in CHOICES[place] for option in entry.parameters)
        else:
            yield place
