"""The published methods, one module each, and the registry that lists them."""

from counterpoise.methods.fedavg import avg, fedavg
from counterpoise.methods.fedavgm import fedavgm
from counterpoise.methods.fedprox import fedprox
from counterpoise.methods.registry import METHODS

__all__ = ["METHODS", "avg", "fedavg", "fedavgm", "fedprox"]
