"""What several methods share: weighing, combining, updating, local terms."""

from counterpoise.errors import guard
from counterpoise.parts.combining import mean
from counterpoise.parts.geometry import by_columns, cosines, square_distances
from counterpoise.parts.local_terms import mean_gradient, proximal
from counterpoise.parts.updating import adaptive, server_momentum, server_step
from counterpoise.parts.weighing import by_data, shares, uniform

__all__ = [
    "adaptive",
    "by_columns",
    "by_data",
    "cosines",
    "mean",
    "mean_gradient",
    "proximal",
    "server_momentum",
    "server_step",
    "shares",
    "square_distances",
    "uniform",
]

guard(__name__)
