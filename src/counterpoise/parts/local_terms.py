"""What a client adds to its own training."""

from __future__ import annotations

from torch import Tensor

from counterpoise.method import Client, Part, Step

__all__ = ["proximal"]


def proximal(mu: float) -> Part:
    """The gradient of ``mu/2 |w - w_t|^2``, a pull to the server's model (Li et al. 2020, eq. 2)."""

    def gradient(client: Client, step: Step, g: Tensor) -> Tensor:
        return g + mu * (step.w - client.start)

    return Part("proximal", gradient=gradient if mu else None)
