"""Local training of a cohort, the server's half of a round, and the simulator that joins them."""

from counterpoise.engine.backends.settings import Engine
from counterpoise.engine.rounds.admission import Limits
from counterpoise.engine.rounds.evaluation import Evaluation
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.engine.rounds.server import Outcome, Server
from counterpoise.engine.rounds.simulation import Simulation
from counterpoise.engine.scores import accuracy, cross_entropy

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
