"""Data sets, partitions, and the federation they make: who holds what."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from counterpoise.federation.allocation import client_dirichlet, pachinko
    from counterpoise.federation.assignment import Assignment, Drawn, Table
    from counterpoise.federation.availability import (
        AVAILABILITIES,
        Availability,
        Call,
        Sampler,
        bernoulli,
        day_and_night,
        everyone,
        replay,
        stragglers,
        uniformly,
        weighted,
    )
    from counterpoise.federation.catalogue import DATASETS, DataSet
    from counterpoise.federation.datasets import load
    from counterpoise.federation.features import SKEWS, Skew, colour, noise, rotation
    from counterpoise.federation.federation import Federation
    from counterpoise.federation.flower import flwr
    from counterpoise.federation.given import from_file, natural
    from counterpoise.federation.labels import capped_dirichlet, dirichlet, lq, rare, shards
    from counterpoise.federation.padding import padded
    from counterpoise.federation.partition import Partition, draws, iid, mixed
    from counterpoise.federation.quantities import power_law, quantity_dirichlet
    from counterpoise.federation.recipes import PARTITIONS
    from counterpoise.federation.samples import Samples
else:
    from counterpoise.lazy import attach as _attach

    __getattr__, __dir__ = _attach(
        __name__,
        {
            "counterpoise.federation.allocation": "client_dirichlet pachinko",
            "counterpoise.federation.assignment": "Assignment Drawn Table",
            "counterpoise.federation.availability": "AVAILABILITIES Availability Call Sampler bernoulli day_and_night "
            "everyone replay stragglers uniformly weighted",
            "counterpoise.federation.catalogue": "DATASETS DataSet",
            "counterpoise.federation.datasets": "load",
            "counterpoise.federation.features": "SKEWS Skew colour noise rotation",
            "counterpoise.federation.federation": "Federation",
            "counterpoise.federation.flower": "flwr",
            "counterpoise.federation.given": "from_file natural",
            "counterpoise.federation.labels": "capped_dirichlet dirichlet lq rare shards",
            "counterpoise.federation.padding": "padded",
            "counterpoise.federation.partition": "Partition draws iid mixed",
            "counterpoise.federation.quantities": "power_law quantity_dirichlet",
            "counterpoise.federation.recipes": "PARTITIONS",
            "counterpoise.federation.samples": "Samples",
        },
    )

__all__ = [
    "AVAILABILITIES",
    "DATASETS",
    "PARTITIONS",
    "SKEWS",
    "Assignment",
    "Availability",
    "Call",
    "DataSet",
    "Drawn",
    "Federation",
    "Partition",
    "Sampler",
    "Samples",
    "Skew",
    "Table",
    "bernoulli",
    "capped_dirichlet",
    "client_dirichlet",
    "colour",
    "day_and_night",
    "dirichlet",
    "draws",
    "everyone",
    "flwr",
    "from_file",
    "iid",
    "load",
    "lq",
    "mixed",
    "natural",
    "noise",
    "pachinko",
    "padded",
    "power_law",
    "quantity_dirichlet",
    "rare",
    "replay",
    "rotation",
    "shards",
    "stragglers",
    "uniformly",
    "weighted",
]
