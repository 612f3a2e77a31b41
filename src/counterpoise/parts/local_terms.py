"""What a client adds to its training, and what it can report afterwards."""

from __future__ import annotations

from torch import Tensor

from counterpoise.method import Client, Part, Reply, Step

__all__ = ["mean_gradient", "proximal"]


def proximal(mu: float) -> Part:
    """The gradient of ``mu/2 |w - w_t|^2``, a pull towards the server's model (Li et al. 2020, eq. 2)."""

    def gradient(client: Client, step: Step, g: Tensor) -> Tensor:
        mu = client.numbers["mu"]
        return g + mu * (step.w - client.start)

    return Part("proximal", numbers={"mu": mu}, gradient=gradient if mu else None)


def mean_gradient(client: Client, reply: Reply) -> Tensor:
    """``(w_t - w_i) / (|a|_1 eta)``: the mean gradient in the optimiser. For plain SGD, ``|a|_1`` is the step count."""
    reach = client.local.optimizer.reach
    assert reach is not None, "a part that uses this must check that the optimiser has a reach"
    return -reply.trained / (reach(client.steps.to(client.start.dtype)) * client.lr)
