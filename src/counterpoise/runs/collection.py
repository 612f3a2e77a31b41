"""The former home of `counterpoise.comparisons.collection.collect`, for one version."""

from counterpoise.comparisons.collection import collect

__all__ = ["collect"]
