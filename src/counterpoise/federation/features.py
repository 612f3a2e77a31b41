"""Feature skew: every client sees the world in its own way.

A skew changes each byte picture once, when the federation is made, to how its owner sees it. So it
works with every partition that gives each sample to one client, and costs nothing in a round. The
server's own sets stay as they are, unless the test set is asked for as each client sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from counterpoise.errors import CounterpoiseError, brief
from counterpoise.federation.assignment import Assignment, Table, apart
from counterpoise.federation.samples import Samples
from counterpoise.memory import bytes_in_words, machine_memory
from counterpoise.randomness import counter, normal, purpose, uniform
from counterpoise.registry import Option, Registry
from counterpoise.trees import mapped

__all__ = ["SKEWS", "Skew", "colour", "noise", "rotation", "skew_inputs", "skew_test", "within"]

Skew = Callable[[Tensor, Tensor, Tensor, int, int], Tensor]
"""``(pictures as bytes [S, C, H, W], their rows [S], their owners [S], clients, seed) -> pictures as bytes``"""
SKEWS: Registry[Skew] = Registry("feature skew", called="skew(pictures, rows, owners, clients, seed)")

_BLOCK = 128
"""Pictures changed at once: so few that their noise stays in the cache, which is four times as fast as 4,096."""


@SKEWS.register("noise")
def noise(
    level: Annotated[float, Option("standard deviation on the last client, in grey levels", above=0)],
    first: Annotated[float | None, Option("that on the first client; by default level / clients", low=0)] = None,
) -> Skew:
    """Gaussian noise that grows evenly from the first client to the last (Li et al. 2022)."""

    def apply(pictures: Tensor, rows: Tensor, owners: Tensor, clients: int, seed: int) -> Tensor:
        pixels = torch.arange(pictures[0].numel()).view(pictures.shape[1:])
        drawn = normal(counter(seed, purpose("noise"), _over(rows, pictures), pixels), torch.float32)
        if first is None:
            deviations = level * ((owners + 1) / clients)
        else:
            deviations = level + (first - level) * ((clients - 1 - owners) / max(1, clients - 1))
        return _bytes(pictures + _over(deviations, pictures) * drawn)

    return apply


@SKEWS.register("rotation")
def rotation(
    degrees: Annotated[float, Option("largest angle either way", above=0, high=180)],
    steps: Annotated[int | None, Option("number of evenly spaced angles; by default any angle", low=2)] = None,
) -> Skew:
    """Each client's pictures are turned by an angle of its own, drawn from -degrees to degrees."""

    def apply(pictures: Tensor, rows: Tensor, owners: Tensor, clients: int, seed: int) -> Tensor:
        drawn = uniform(counter(seed, purpose("rotation"), owners), torch.float32)
        if steps is not None:
            drawn = (drawn * steps).floor() / (steps - 1)
        angle = (2 * drawn - 1) * (degrees * torch.pi / 180)
        height, width = pictures.shape[-2:]
        turn = torch.zeros(len(pictures), 2, 3)
        turn[:, 0, 0] = turn[:, 1, 1] = angle.cos()
        turn[:, 0, 1], turn[:, 1, 0] = angle.sin() * (height / width), -angle.sin() * (width / height)
        grid = F.affine_grid(turn, list(pictures.shape), align_corners=False)
        return _bytes(F.grid_sample(pictures.float(), grid, align_corners=False))

    return apply


@SKEWS.register("colour")
def colour(
    strength: Annotated[float, Option("how far a channel's brightness may change, as a fraction", above=0, high=1)],
) -> Skew:
    """Each client's channels are brighter or darker by factors of its own, from 1 - strength to 1 + strength."""

    def apply(pictures: Tensor, rows: Tensor, owners: Tensor, clients: int, seed: int) -> Tensor:
        channels = torch.arange(pictures.shape[1])
        drawn = uniform(counter(seed, purpose("colour"), owners[:, None], channels), torch.float32)
        return _bytes(pictures * (1 + strength * (2 * drawn - 1))[:, :, None, None])

    return apply


def skew_inputs(inputs: Tensor, held: Assignment, skew: Skew, seed: int) -> Tensor:
    """The inputs with each client's samples as it sees them."""
    _check(skew)
    _check_pictures(inputs)
    if not isinstance(held, Table):
        raise CounterpoiseError(
            "Clients that draw from a shared base share its pictures; they can have no feature skew."
        )
    if not apart(held):
        raise CounterpoiseError("A feature skew needs a partition that gives each sample to one client.")
    changed, owners = inputs.clone(), held.owners
    for place in range(0, len(held.flat), _BLOCK):
        rows = held.flat[place : place + _BLOCK]
        changed[rows] = skew(inputs[rows], rows, owners[place : place + _BLOCK], held.clients, seed)
    return changed


def skew_test(test: Samples | None, clients: int, skew: Skew | None, seed: int, first: int) -> Samples:
    """The test set once for each client, as it sees it. To a skew, these pictures have the row numbers from `first`."""
    if test is None or skew is None:
        raise CounterpoiseError(
            "skewed_test shows the test set as each client sees it, so it needs a test set and features."
        )
    _check(skew)
    _check_pictures(test.inputs)
    needs, has = clients * test.inputs.numel(), machine_memory()
    if has is not None and needs > has / 2:
        raise CounterpoiseError(
            f"skewed_test: the test set as each of {clients} clients sees it takes {bytes_in_words(needs)}, and this "
            f"machine has {bytes_in_words(has)}. Use fewer clients, or leave skewed_test out."
        )
    count = len(test)
    seen = torch.empty((clients * count, *test.inputs.shape[1:]), dtype=torch.uint8)
    for rows in torch.split(torch.arange(len(seen)), _BLOCK):
        seen[rows] = skew(test.inputs[rows % count], first + rows, rows // count, clients, seed)
    targets = mapped(lambda t: t.repeat(clients, *(1,) * (t.ndim - 1)), test.targets)
    return replace(test, inputs=seen, targets=targets)


def within(skew: Skew, peak: int) -> Skew:
    """The skew, with no pixel above the largest that the pictures can have."""
    _check(skew)
    return lambda pictures, *more: skew(pictures, *more).clamp(max=peak)


def _check(skew: object) -> None:
    if not callable(skew):
        raise CounterpoiseError(f"features must be a feature skew such as cp.rotation(45), not {brief(skew)}.")


def _check_pictures(inputs: object) -> None:
    if not isinstance(inputs, Tensor):
        raise CounterpoiseError("A feature skew changes pictures of bytes; these samples have inputs in several parts.")
    if inputs.dtype != torch.uint8 or inputs.ndim != 4:
        raise CounterpoiseError(
            f"A feature skew changes pictures of bytes, [samples, channels, height, width]; "
            f"these inputs are {str(inputs.dtype).removeprefix('torch.')} of shape {tuple(inputs.shape)}."
        )


def _over(values: Tensor, pictures: Tensor) -> Tensor:
    """One value per picture, shaped to broadcast over its pixels."""
    return values.view(-1, *(1,) * (pictures.ndim - 1))


def _bytes(values: Tensor) -> Tensor:
    return values.round().clamp(0, 255).to(torch.uint8)
