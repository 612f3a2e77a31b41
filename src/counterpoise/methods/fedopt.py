"""FedAdagrad, FedYogi, FedAdam: adaptive optimisers on the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization, ICLR
2021, Algorithm 2. (Its mean weighs clients equally; its experiments, sec. 5 and appendix, weigh by data. So do we.)
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from counterpoise.method import Method
from counterpoise.methods.fedavg import fedavg
from counterpoise.methods.registry import METHODS
from counterpoise.parts import adaptive
from counterpoise.registry import Option, Paper

__all__ = ["fedadagrad", "fedadam", "fedyogi"]

PAPER = Paper("Adaptive Federated Optimization", "Reddi et al.", 2021, "arXiv:2003.00295")

Lr = Annotated[float, Option("server learning rate", above=0)]
Beta1 = Annotated[float, Option("decay of the mean update, m", low=0, below=1)]
Beta2 = Annotated[float, Option("decay of the mean square, v", low=0, below=1)]
Tau = Annotated[float, Option("added to sqrt(v); the degree of adaptivity", above=0)]


@METHODS.register("fedadagrad", group="server optimisers", paper=PAPER)
def fedadagrad(lr: Lr = 0.1, beta1: Beta1 = 0.0, tau: Tau = 1e-3) -> Method:
    """FedAvg with Adagrad on the server.

    ``v <- v + u^2``, ``w <- w + lr m/(sqrt(v) + tau)`` (Algorithm 2).
    """

    def moment(v: Tensor, square: Tensor) -> Tensor:
        return v + square

    return fedavg().replacing("fedadagrad", update=adaptive("server-adagrad", moment, beta1, tau, lr))


@METHODS.register("fedyogi", group="server optimisers", paper=PAPER)
def fedyogi(lr: Lr = 0.01, beta1: Beta1 = 0.9, beta2: Beta2 = 0.99, tau: Tau = 1e-3) -> Method:
    """FedAvg with Yogi on the server.

    ``v <- v - (1 - beta2) u^2 sign(v - u^2)``, ``w <- w + lr m/(sqrt(v) + tau)`` (Algorithm 2).
    """

    def moment(v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - beta2) * square * (v - square).sign()

    return fedavg().replacing("fedyogi", update=adaptive("server-yogi", moment, beta1, tau, lr))


@METHODS.register("fedadam", group="server optimisers", paper=PAPER)
def fedadam(lr: Lr = 0.01, beta1: Beta1 = 0.9, beta2: Beta2 = 0.99, tau: Tau = 1e-3) -> Method:
    """FedAvg with Adam on the server.

    ``v <- beta2 v + (1 - beta2) u^2``, ``w <- w + lr m/(sqrt(v) + tau)`` (Algorithm 2).
    """

    def moment(v: Tensor, square: Tensor) -> Tensor:
        return beta2 * v + (1 - beta2) * square

    return fedavg().replacing("fedadam", update=adaptive("server-adam", moment, beta1, tau, lr))
