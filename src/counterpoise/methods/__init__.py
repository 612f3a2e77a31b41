"""The published methods, one module each, and the registry that lists them."""

from counterpoise.methods.feda4 import feda4
from counterpoise.methods.fedavg import avg, fedavg
from counterpoise.methods.fedavgm import fedavgm
from counterpoise.methods.fedbac import fedbac, fedbac_soft
from counterpoise.methods.fedoaed import fedoaed
from counterpoise.methods.fedprox import fedprox
from counterpoise.methods.registry import METHODS

__all__ = ["METHODS", "avg", "feda4", "fedavg", "fedavgm", "fedbac", "fedbac_soft", "fedoaed", "fedprox"]
