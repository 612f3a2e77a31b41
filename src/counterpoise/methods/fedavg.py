"""FedAvg, and the plain mean.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data, AISTATS 2017, Algorithm 1.
"""

from __future__ import annotations

from typing import Annotated

from counterpoise.method import Method
from counterpoise.methods.registry import METHODS
from counterpoise.parts import by_data, mean, server_step, uniform
from counterpoise.registry import Option, Paper

__all__ = ["avg", "fedavg"]

PAPER = Paper(
    "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    "McMahan et al.",
    2017,
    "arXiv:1602.05629",
)


@METHODS.register("fedavg", group="weighting", paper=PAPER)
def fedavg(
    lr: Annotated[float, Option("server learning rate", above=0)] = 1.0,
) -> Method:
    """Average of the clients' updates, weighted by their data.

    ``w <- w + lr sum_i (n_i / n) d_i``.
    """
    return Method("fedavg", weigh=(by_data(),), combine=(mean(),), update=(server_step(lr),))


@METHODS.register("avg", group="weighting", paper=PAPER)
def avg(
    lr: Annotated[float, Option("server learning rate", above=0)] = 1.0,
) -> Method:
    """Average of the clients' updates, each counted once.

    ``w <- w + lr (1/|S|) sum_i d_i``.
    """
    return fedavg(lr).replacing("avg", weigh=uniform())
