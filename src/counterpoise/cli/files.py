"""A preset as a file of its own, with every setting written out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomli_w

from counterpoise.registry import Registry
from counterpoise.runs.config import parse
from counterpoise.runs.experiments import read
from counterpoise.runs.places import CHOICES

__all__ = ["preset_file"]


def preset_file(name: str) -> str:
    """The text of a TOML file that makes the same runs as the preset and takes nothing from another one.

    It has every key and every option that has a value, defaults included; TOML cannot write down the others.
    """
    config = parse(read(name)[0], name)
    values = config.plain()
    for place, registry in CHOICES.items():
        table, key = values, place
        if "." in place:
            outer, _, key = place.partition(".")
            table = values[outer]
        if key in table:
            table[key] = _spelled_out(registry, table[key])
    return tomli_w.dumps(values | {"paper": config.paper.model_dump(exclude_defaults=True)})


def _spelled_out(registry: Registry[Any], chosen: Any) -> Any:
    """A choice, or each of several, with the defaults of its options; anything else, such as a number, as it is."""
    if isinstance(chosen, list):
        return [_spelled_out(registry, one) for one in chosen]
    if not isinstance(chosen, Mapping):
        return chosen
    defaults = {p.name: p.default for p in registry[chosen["name"]].parameters.values() if not p.required}
    return {"name": chosen["name"]} | {k: v for k, v in defaults.items() if v is not None} | dict(chosen)
