"""FedOAED: each client smooths its update with an autoencoder trained on its own trajectory.

Howlader, Chen, Xie, Liu: FedOAED: Federated On-Device Autoencoder Denoiser for Heterogeneous Data under Limited
Client Availability. Equations 4-9, Algorithms 2-4. The server is FedAvg's.

The paper has two slips; docs/methods/fedoaed.md explains how we read them. Algorithm 2 divides by the learning rate
(line 18, eq. 9), but eq. 3 does not multiply by it: we leave it out, so the upload is ``-delta~``. Line 13
reconstructs the final delta, which is defined only in line 14.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.flat import Layout
from counterpoise.local import Local, Optimizer, adam
from counterpoise.method import Client, Method, Part, Reply, World
from counterpoise.methods.fedavg import fedavg
from counterpoise.methods.registry import METHODS
from counterpoise.randomness import counter, purpose, uniform
from counterpoise.registry import Option, Paper

__all__ = ["fedoaed"]

PAPER = Paper(
    "FedOAED: Federated On-Device Autoencoder Denoiser for Heterogeneous Data under Limited Client Availability",
    "Howlader, Chen, Xie, Liu",
)

Denoiser = Literal["subspace", "dense", "projection", "auto"]

_BLOCK = 1 << 18
"""Columns of the snapshots that are converted to float64 at a time."""
_DEPENDENT = 1e-8
"""On squares: a snapshot within 1e-4 of its length from the span of the earlier ones adds no direction."""
_START = purpose("autoencoder")


@METHODS.register("fedoaed", group="variance", paper=PAPER)
def fedoaed(
    denoiser: Annotated[
        Denoiser,
        Option(
            "an autoencoder in the span of the snapshots, Algorithm 4 on all parameters, a projection without "
            "training, or dense if the client's own memory allows it and else subspace"
        ),
    ] = "subspace",
    mix: Annotated[float, Option("lambda, share of the denoised update in the upload", low=0, high=1)] = 0.3,
    every: Annotated[int, Option("s, steps between two snapshots", low=1)] = 2,
    minimum: Annotated[int, Option("m, fewest snapshots to learn from", low=1)] = 4,
    epochs: Annotated[int, Option("e, passes of the autoencoder over the snapshots", low=0)] = 10,
    hidden: Annotated[int, Option("width of the autoencoder's hidden layers", low=1)] = 512,
    latent: Annotated[int, Option("width of its bottleneck; in a span of r dimensions at most r/2", low=1)] = 32,
    rank: Annotated[int, Option("directions that the projection keeps", low=1)] = 2,
    rate: Annotated[float, Option("learning rate of the autoencoder's Adam", above=0)] = 0.003,
    budget: Annotated[
        float,
        Option("GiB that dense may take on a client if its own memory (local.memory) is not given", above=0),
    ] = 2.0,
) -> Method:
    """FedAvg of updates that each client smooths with an autoencoder of its own trajectory.

    ``delta~_i = (1 - lambda) delta_i + lambda A_i(delta_i)`` (eq. 5-7), with A_i trained on the snapshots
    ``delta_i^(k) = w - w_i^(k)`` of every s-th step (eq. 4). With fewer than m of them, ``delta_i`` stays as it is.
    """
    upload = denoised(denoiser, mix, every, minimum, epochs, hidden, latent, rank, rate, budget)
    return fedavg().adding("fedoaed", upload=upload)


class Setting(NamedTuple):
    """How an autoencoder is built and trained."""

    hidden: int
    latent: int
    epochs: int
    optimizer: Optimizer


def denoised(
    denoiser: Denoiser,
    mix: float,
    every: int,
    minimum: int,
    epochs: int,
    hidden: int,
    latent: int,
    rank: int,
    rate: float,
    budget: float,
) -> Part:
    """Algorithm 2, lines 6-18, on a client's trace."""
    setting = Setting(hidden, latent, epochs, adam(rate))

    def finish(client: Client, reply: Reply) -> Reply:
        assert client.trace is not None
        assert client.traced is not None
        if len(client.trace) < minimum or mix == 0:
            return reply
        needed = dense_bytes(len(reply.update), hidden, latent, reply.update.dtype)
        room = [gib * 2**30 >= needed for gib in memories(client.local, budget)]
        if denoiser != "auto":
            clean = by(denoiser, client, reply)
        elif all(room) or not any(room):
            clean = by("dense" if all(room) else "subspace", client, reply)
        else:  # clients train together, so both are computed and each takes its own; a node computes only one
            fits = _table(tuple(room), reply.update.device)[client.index.clamp(min=0)[None]]
            clean = torch.where(fits, by("dense", client, reply), by("subspace", client, reply))
        mixed = (1 - mix) * reply.update + mix * clean
        return replace(reply, update=torch.where(client.traced >= minimum, mixed, reply.update))

    def by(kind: Denoiser, client: Client, reply: Reply) -> Tensor:
        assert client.trace is not None
        assert client.traced is not None
        rounding = rounded_square(client.start, client.steps)
        if kind == "projection":
            return projection(client.trace, reply.update, rank, rounding)
        if kind == "subspace":
            return subspace(client.trace, reply.update, client.traced, client.key, setting, rounding)
        # Trace and update are w^(k) - w; the paper's deltas have the opposite sign. In coordinates of their own span
        # the sign makes no difference; to the dense autoencoder it does.
        return -dense(-client.trace, -reply.update, client.traced, client.key, setting)

    def check(world: World) -> None:
        needed, least = dense_bytes(world.layout.size, hidden, latent), min(memories(world.local, budget))
        if denoiser == "dense" and needed > least * 2**30:
            raise CounterpoiseError(
                f"method fedoaed: the dense autoencoder for a model of {world.layout.size:,} parameters has "
                f"{layers(world.layout.size, hidden, latent).size:,} weights and takes at least "
                f"{needed / 2**30:.1f} GiB on each client, more than its budget of {least:g} GiB. "
                "Choose denoiser='subspace' or a higher budget."
            )

    return Part("denoiser", trace_every=every, finish=finish, check=check)


def memories(local: Local, budget: float) -> Sequence[float]:
    """The clients' memory in GiB: one number for all of them, or one each."""
    given = budget if local.memory is None else local.memory
    return given if isinstance(given, Sequence) else [given]


@lru_cache
def _table(values: tuple[bool, ...], device: torch.device) -> Tensor:
    """Made once, because a CUDA graph cannot copy from the host while it is captured."""
    return torch.tensor(values, device=device)


# ---------------------------------------------------------------- the autoencoder


class Autoencoder(NamedTuple):
    """Algorithm 4: inputs -> hidden -> latent -> hidden -> inputs, with ReLU between. The masks `code` and `out` switch
    off entries for clients whose span is smaller than that of the clients beside them.
    """

    layout: Layout
    code: Tensor | float = 1.0
    out: Tensor | float = 1.0


def layers(inputs: int, hidden: int, latent: int) -> Layout:
    """The autoencoder's weights and biases as one flat vector."""
    widths = (inputs, hidden, latent, hidden, inputs)
    pairs = list(zip(widths[1:], widths[:-1], strict=True))
    return Layout(
        tuple(name for i in range(4) for name in (f"{i}.weight", f"{i}.bias")),
        tuple(shape for out, into in pairs for shape in ((out, into), (out,))),
    )


def dense_bytes(size: int, hidden: int, latent: int, dtype: torch.dtype = torch.float32) -> int:
    """Bytes of the weights, the gradient and Adam's two moments."""
    return 4 * layers(size, hidden, latent).size * dtype.itemsize


def initial(layout: Layout, fans: Sequence[Tensor | int], key: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights and biases uniform within ``1/sqrt(fan-in)``, like torch's linear layers.

    A weight depends only on the key and its own position, so padding changes none.
    """
    drawn = []
    for number, shape in enumerate(layout.shapes):
        places = [torch.arange(n, device=key.device) for n in shape]
        bits = counter(key, _START, number, places[0].view(-1, *(1,) * (len(shape) - 1)), *places[1:])
        fan = fans[number // 2]
        fan = fan if isinstance(fan, Tensor) else torch.full((), fan, device=key.device)
        bound = fan.to(dtype).clamp(min=1).rsqrt()
        drawn.append((2 * uniform(bits, dtype) - 1) * bound)
    return layout.flatten(drawn)


def reconstruct(net: Autoencoder, weights: Tensor, x: Tensor) -> Tensor:
    """The autoencoder's output for rows ``[n, inputs]``."""
    a, a0, b, b0, c, c0, d, d0 = net.layout.unflatten(weights)
    z = (torch.relu(x @ a.T + a0) @ b.T + b0) * net.code
    return (torch.relu(z @ c.T + c0) @ d.T + d0) * net.out


def slope(net: Autoencoder, weights: Tensor, x: Tensor, real: Tensor) -> Tensor:
    """The gradient of ``sum_i real_i |A(x_i) - x_i|^2``, written out because autograd takes twice as long."""
    a, a0, b, b0, c, c0, d, d0 = net.layout.unflatten(weights)
    h = torch.relu(x @ a.T + a0)
    z = (h @ b.T + b0) * net.code
    k = torch.relu(z @ c.T + c0)
    e = 2 * real[:, None] * ((k @ d.T + d0) * net.out - x) * net.out
    e_k = (e @ d) * (k > 0)
    e_z = (e_k @ c) * net.code
    e_h = (e_z @ b) * (h > 0)
    both = zip((e_h, e_z, e_k, e), (x, h, z, k), strict=True)
    return net.layout.flatten([t for error, into in both for t in (error.T @ into, error.sum(0))])


def trained(net: Autoencoder, weights: Tensor, rows: Tensor, real: Tensor, epochs: int, optimizer: Optimizer) -> Tensor:
    """Weights after `epochs` steps on the summed squared error of the real rows (Algorithm 2, line 12)."""
    state, lr = optimizer.init(weights), weights.new_full((), optimizer.lr)
    for _ in range(epochs):
        weights, state = optimizer.step(weights, slope(net, weights, rows, real), state, lr)
    return weights


# ---------------------------------------------------------------- the denoisers
# Each takes the snapshots [S, D], of which `count` are real and the rest zero, and the final delta [D]. Those that look
# for directions also take `rounding`, the squared length below which there is none.


def dense(deltas: Tensor, delta: Tensor, count: Tensor, key: Tensor, setting: Setting) -> Tensor:
    """Algorithm 4 as printed, on whole vectors, scaled by one number to unit root mean square."""
    real = _real(deltas, count)
    scale, divisor = _scale(deltas, count * len(delta))
    layout = layers(len(delta), setting.hidden, setting.latent)
    weights = initial(layout, (len(delta), setting.hidden, setting.latent, setting.hidden), key, delta.dtype)
    net = Autoencoder(layout)
    weights = trained(net, weights, deltas / divisor, real, setting.epochs, setting.optimizer)
    return reconstruct(net, weights, (delta / divisor)[None])[0] * scale


def subspace(
    deltas: Tensor, delta: Tensor, count: Tensor, key: Tensor, setting: Setting, rounding: Tensor | float = 0.0
) -> Tensor:
    """The same autoencoder, on coordinates in the span of final delta and snapshots: r <= S + 1 numbers instead of D.

    The code is at most r/2 wide; otherwise nothing would be compressed.
    """
    products = gram(deltas, delta)
    lower = triangle(products, torch.maximum(_DEPENDENT * products.diagonal(), torch.as_tensor(rounding).to(products)))
    inside = lower.diagonal() > 0  # a dependent snapshot or padding adds no dimension
    rank = inside.sum()
    z = lower.to(delta.dtype)
    scale, divisor = _scale(z[1:], count * rank)
    widest = max(1, min(setting.latent, len(z) // 2))
    width = (rank // 2).clamp(1, widest)
    code = (torch.arange(widest, device=z.device) < width).to(z.dtype)
    net = Autoencoder(layers(len(z), setting.hidden, widest), code, inside.to(z.dtype))
    weights = initial(net.layout, (rank, setting.hidden, width, setting.hidden), key, z.dtype)
    weights = trained(net, weights, z[1:] / divisor, _real(deltas, count), setting.epochs, setting.optimizer)
    decoded = reconstruct(net, weights, z[:1] / divisor)[0] * scale
    return combination(deltas, delta, coefficients(lower, decoded.double()))


def projection(deltas: Tensor, delta: Tensor, rank: int, rounding: Tensor | float = 0.0) -> Tensor:
    """The final delta projected on the leading directions of the snapshots (uncentred), without training."""
    products = gram(deltas, delta)
    # eigh raises if a number is not finite, but a diverged client must reach the server, which leaves it out.
    finite = products.isfinite().all()
    products = torch.where(finite, products, 0)
    squares, vectors = torch.linalg.eigh(products[1:, 1:])
    # Largest last. u_j = X^T v_j / s_j, so u_j u_j^T delta = X^T v_j (v_j^T X delta) / s_j^2.
    squares, vectors = squares[-rank:], vectors[:, -rank:]
    there = squares > _DEPENDENT * products.diagonal().sum() + rounding
    share = torch.where(there, (vectors.T @ products[1:, 0]) / torch.where(there, squares, 1), 0)
    c = torch.cat([share.new_zeros(1), vectors @ share])
    return combination(deltas, delta, torch.where(finite, c, torch.nan))


# ---------------------------------------------------------------- the span of the snapshots


def gram(deltas: Tensor, delta: Tensor) -> Tensor:
    """Inner products of the final delta and the snapshots, in float64: ``[S + 1, S + 1]``.

    The final delta comes first, so that the others keep their places whatever the padding.
    """
    total = delta.new_zeros(len(deltas) + 1, len(deltas) + 1, dtype=torch.float64)
    for block in _blocks(deltas, delta):
        total = total + block @ block.T
    return total


def rounded_square(start: Tensor, steps: Tensor) -> Tensor:
    """The squared length up to which a direction of the trajectory may be rounding: ``K (eps/2 |w|)^2``, in float64.

    Each step rounds the model by at most ``eps/2 |w|``, in a direction of its own. The model may be much longer than
    its displacement from `start`.
    """
    rounding: Tensor = torch.finfo(start.dtype).eps / 2 * torch.linalg.vector_norm(start, dtype=torch.float64)
    return steps * rounding.square()


def triangle(products: Tensor, least: Tensor) -> Tensor:
    """The lower triangle L with ``L L^T`` the Gram matrix: row i holds vector i's coordinates in an orthonormal basis.

    Cholesky, one column at a time. A vector gets a column of zeros if its squared distance to the span of the earlier
    ones is at most its entry in `least`.
    """
    rest, size = products, len(products)
    places = torch.arange(size, device=products.device)
    columns = []
    for j in range(size):
        pivot = rest[j, j]
        fresh = pivot > least[j]
        column = torch.where(fresh & (places >= j), rest[:, j] / torch.where(fresh, pivot, 1).sqrt(), 0)
        rest = rest - column[:, None] * column[None, :]
        columns.append(column)
    return torch.stack(columns, dim=1)


def coefficients(lower: Tensor, coordinates: Tensor) -> Tensor:
    """The coefficients of the vectors whose combination has these coordinates: ``L^T c = z``."""
    inside = lower.diagonal() > 0
    full = lower + torch.diag((~inside).to(lower.dtype))
    solved: Tensor = torch.linalg.solve_triangular(full.T, (coordinates * inside)[:, None], upper=True)
    return solved[:, 0]


def combination(deltas: Tensor, delta: Tensor, c: Tensor) -> Tensor:
    """``sum_i c_i x_i`` over the final delta and the snapshots, summed in float64."""
    return torch.cat([(c @ block).to(delta.dtype) for block in _blocks(deltas, delta)])


def _blocks(deltas: Tensor, delta: Tensor) -> Iterator[Tensor]:
    """Final delta and snapshots in float64, a range of columns at a time: a whole copy would double the memory."""
    for begin in range(0, len(delta), _BLOCK):
        some = slice(begin, begin + _BLOCK)
        yield torch.cat([delta[None, some], deltas[:, some]]).double()


def _real(deltas: Tensor, count: Tensor) -> Tensor:
    return (torch.arange(len(deltas), device=deltas.device) < count).to(deltas.dtype)


def _scale(rows: Tensor, entries: Tensor) -> tuple[Tensor, Tensor]:
    """The root mean square over `entries` numbers, and a divisor that is 1 instead of 0: zero snapshots stay zero."""
    scale = (rows.square().sum() / entries.clamp(min=1)).sqrt()
    return scale, torch.where(scale > 0, scale, 1)
