"""Data sets, partitions, and the federation they make: who holds what."""

from counterpoise.federation.assignment import Assignment, Drawn, Table
from counterpoise.federation.datasets import DATASETS, load
from counterpoise.federation.federation import Federation
from counterpoise.federation.partition import PARTITIONS, Partition, dirichlet, draws, iid, shards
from counterpoise.federation.samples import Samples

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "Assignment",
    "Drawn",
    "Federation",
    "Partition",
    "Samples",
    "Table",
    "dirichlet",
    "draws",
    "iid",
    "load",
    "shards",
]
