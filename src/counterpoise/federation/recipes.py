"""Every partition by name: the modules named here register theirs when they are imported."""

from counterpoise.federation import allocation, flower, given, labels, quantities  # noqa: F401
from counterpoise.federation.partition import PARTITIONS

__all__ = ["PARTITIONS"]
