"""Local training of a cohort, the server's half of a round, and the simulator that joins them."""

from counterpoise.engine.admission import Limits
from counterpoise.engine.evaluation import Evaluation, accuracy, cross_entropy
from counterpoise.engine.server import Outcome, Server
from counterpoise.engine.settings import Engine
from counterpoise.engine.simulation import RoundRecord, Simulation

__all__ = [
    "Engine",
    "Evaluation",
    "Limits",
    "Outcome",
    "RoundRecord",
    "Server",
    "Simulation",
    "accuracy",
    "cross_entropy",
]
