"""FedProx.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks,
MLSys 2020, eq. 2 and Algorithm 2. (Their analysis samples clients by data and averages them
equally; as in their experiments and most that cite them, we sample equally and weigh by data.)
"""

from __future__ import annotations

from typing import Annotated

from counterpoise.method import Method
from counterpoise.methods.fedavg import fedavg
from counterpoise.methods.registry import METHODS
from counterpoise.parts import proximal
from counterpoise.registry import Option, Paper

__all__ = ["fedprox"]

PAPER = Paper("Federated Optimization in Heterogeneous Networks", "Li et al.", 2020, "arXiv:1812.06127")


@METHODS.register("fedprox", group="drift", paper=PAPER)
def fedprox(
    mu: Annotated[float, Option("strength of the pull", low=0)] = 0.01,
    lr: Annotated[float, Option("server learning rate", above=0)] = 1.0,
) -> Method:
    """FedAvg with a pull of each client towards the server's model.

    Clients minimise ``F_i(w) + mu/2 |w - w_t|^2`` (eq. 2); the server is FedAvg's.
    """
    return fedavg(lr).adding("fedprox", local=proximal(mu))
