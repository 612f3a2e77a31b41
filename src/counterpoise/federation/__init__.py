"""Data sets, partitions, and the federation they make: who holds what."""

from counterpoise.federation.assignment import Assignment, Drawn, Table
from counterpoise.federation.availability import (
    AVAILABILITIES,
    Availability,
    Call,
    Sampler,
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
from counterpoise.federation.labels import dirichlet, lq, shards
from counterpoise.federation.partition import PARTITIONS, Partition, draws, iid, mixed
from counterpoise.federation.quantities import power_law, quantity_dirichlet
from counterpoise.federation.samples import Samples

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
    "power_law",
    "quantity_dirichlet",
    "replay",
    "rotation",
    "shards",
    "stragglers",
    "uniformly",
    "weighted",
]
