"""Local training of a cohort, the server's half of a round, and the simulator that joins them."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from counterpoise.engine.backends.settings import Engine
    from counterpoise.engine.rounds.admission import Limits
    from counterpoise.engine.rounds.evaluation import Evaluation
    from counterpoise.engine.rounds.records import Outcome, RoundRecord
    from counterpoise.engine.rounds.server import Server
    from counterpoise.engine.rounds.simulation import Simulation
    from counterpoise.engine.scores import accuracy, cross_entropy
else:
    from counterpoise.lazy import attach as _attach

    __getattr__, __dir__ = _attach(
        __name__,
        {
            "counterpoise.engine.backends.settings": "Engine",
            "counterpoise.engine.rounds.admission": "Limits",
            "counterpoise.engine.rounds.evaluation": "Evaluation",
            "counterpoise.engine.rounds.records": "Outcome RoundRecord",
            "counterpoise.engine.rounds.server": "Server",
            "counterpoise.engine.rounds.simulation": "Simulation",
            "counterpoise.engine.scores": "accuracy cross_entropy",
        },
    )

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
