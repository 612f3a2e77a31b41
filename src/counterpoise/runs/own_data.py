"""A federation from a function of the user's own that a configuration names."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation
from counterpoise.registry import Registry
from counterpoise.runs.config import DataConfig

__all__ = ["OWN_DATA", "has_named_partition", "own_federation"]

OWN_DATA: Registry[Federation] = Registry(
    "data set", Federation, facts=tuple(DataConfig.model_fields.keys() - {"name", "options", "fingerprint"})
)


def own_federation(name: str, options: Mapping[str, Any], asked: Mapping[str, Any], seed: int) -> Federation:
    """Call the user's function. `asked` are the settings of the table ``data`` that the user set.

    A setting for which the function has no parameter is refused.
    """
    takes = inspect.signature(OWN_DATA[name].factory).parameters
    if strange := [key for key in asked if key not in takes]:
        raise CounterpoiseError(
            f"The data set {name} takes no data.{strange[0]}: its function has no parameter {strange[0]}. "
            "(Its options are settings of data.options.)"
        )
    if "partition" in takes and takes["partition"].default is inspect.Parameter.empty and "partition" not in asked:
        raise CounterpoiseError("The setting data.partition is missing: say how samples are divided among clients.")
    federation = OWN_DATA[name].factory(**options, **asked, **({"seed": seed} if "seed" in takes else {}))
    settings = {key: value.spec.plain() if hasattr(value, "spec") else value for key, value in asked.items()}
    source = {"name": name, "seed": seed, **settings, **({"options": dict(options)} if options else {})}
    object.__setattr__(federation, "source", source)
    return federation


def has_named_partition(source: Mapping[str, Any]) -> bool:
    """Whether a federation can be made again from its source alone: the partition has a name, if there is one."""
    return "partition" not in source or bool(source["partition"].get("name"))
