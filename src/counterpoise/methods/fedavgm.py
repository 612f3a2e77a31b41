"""FedAvg with server momentum.

Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019, sec. 4.3.
"""

from __future__ import annotations

from typing import Annotated

from counterpoise.local import Schedule
from counterpoise.method import Method
from counterpoise.methods.fedavg import fedavg
from counterpoise.methods.registry import METHODS
from counterpoise.parts import server_momentum
from counterpoise.registry import Option, Paper

__all__ = ["fedavgm"]

PAPER = Paper(
    "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
    "Hsu, Qi, Brown",
    2019,
    "arXiv:1909.06335",
)


@METHODS.register("fedavgm", group="server optimisers", paper=PAPER)
def fedavgm(
    beta: Annotated[float, Option("momentum coefficient", low=0, below=1)] = 0.9,
    lr: Annotated[float, Option("server learning rate", above=0)] = 1.0,
    schedule: Annotated[Schedule | None, Option("factor on the server's learning rate, as in local.schedule")] = None,
) -> Method:
    """FedAvg with momentum on the server.

    ``v <- beta v + sum_i (n_i/n) d_i``, ``w <- w + lr v``.
    """
    return fedavg().replacing("fedavgm", update=server_momentum(beta, lr, schedule))
