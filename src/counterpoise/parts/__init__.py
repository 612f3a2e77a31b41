"""What several methods share: weighing, combining, updating, local terms."""

from counterpoise.parts.combining import mean
from counterpoise.parts.geometry import cosines
from counterpoise.parts.local_terms import proximal
from counterpoise.parts.updating import server_momentum, server_step
from counterpoise.parts.weighing import by_data, uniform

__all__ = ["by_data", "cosines", "mean", "proximal", "server_momentum", "server_step", "uniform"]
