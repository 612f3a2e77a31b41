"""Two-dimensional convolutions of a stack of clients, each with a kernel of its own.

Under `vmap`, torch turns them into one grouped convolution, which cuDNN runs one group at a time or with slow
kernels. `stacked` computes each of the three sums involved (output, gradient of the input, gradient of the
kernel) for all clients in one Triton launch; `lowered` puts it in the place of `conv2d` in a user's model.
"""

from counterpoise.engine.acceleration.convolution.lowered import Lowered, available

__all__ = ["Lowered", "available"]
