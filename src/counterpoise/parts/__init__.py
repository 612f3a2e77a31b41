"""What several methods share: weighing, combining, updating, local terms."""

from counterpoise.errors import guard
from counterpoise.parts.averaged import averaged
from counterpoise.parts.bounded import bounded
from counterpoise.parts.capped import capped
from counterpoise.parts.combining import mean
from counterpoise.parts.consensus import consensus_trust
from counterpoise.parts.geometry import by_columns, cosines, square_distances
from counterpoise.parts.local_terms import mean_gradient, proximal
from counterpoise.parts.memory import memory
from counterpoise.parts.pace import pace
from counterpoise.parts.steady import steady
from counterpoise.parts.updating import adaptive, server_momentum, server_step
from counterpoise.parts.weighing import by_data, shares, uniform

__all__ = [
    "adaptive",
    "averaged",
    "bounded",
    "by_columns",
    "by_data",
    "capped",
    "consensus_trust",
    "cosines",
    "mean",
    "mean_gradient",
    "memory",
    "pace",
    "proximal",
    "server_momentum",
    "server_step",
    "shares",
    "square_distances",
    "steady",
    "uniform",
]

guard(__name__)
