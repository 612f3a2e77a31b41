"""Two-dimensional convolutions of a stack of clients, each with a kernel of its own.

Under `vmap` torch makes them one grouped convolution, which cuDNN runs one group at a time or on slow
kernels. `stacked` computes the three sums in question (output, gradient of the input, gradient of
the kernel) for all clients in one launch each, written in Triton; `lowered` puts it in the place of
`conv2d` in a user's model.
"""

from counterpoise.engine.acceleration.convolution.lowered import Lowered, available

__all__ = ["Lowered", "available"]
