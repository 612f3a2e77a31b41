"""Probe sets that are made rather than taken from data, for servers that hold no samples."""

from __future__ import annotations

from dataclasses import replace

import torch

from counterpoise.errors import CounterpoiseError, unknown
from counterpoise.federation.assignment import Assignment
from counterpoise.federation.samples import Samples
from counterpoise.randomness import integer, purpose

__all__ = ["PROBES", "make_probe"]

PROBES = ("noise", "means")
_LEAST = 2
"""A client reports no mean of a class with fewer samples, because the mean of one sample is that sample."""


def make_probe(kind: str, base: Samples, train: Assignment, classes: int | None, seed: int) -> Samples:
    """One input per class: noise, or the mean of the class means that clients report, weighted by their counts.

    Noise is uniform over the range of the data if inputs are bytes, otherwise standard normal; its class
    numbers mean nothing.
    """
    if kind not in PROBES:
        raise unknown("probe", kind, PROBES, "that can be made; a whole number takes that many samples per class")
    if classes is None:
        raise CounterpoiseError("A probe set has one input per class; these targets are not class numbers.")
    if not isinstance(base.inputs, torch.Tensor):
        raise CounterpoiseError(
            f"A probe set of {kind} cannot be made for inputs in several parts. Take samples of the data instead: probe=1."
        )
    if base.inputs.dtype != torch.uint8 and not base.inputs.is_floating_point():
        raise CounterpoiseError(
            f"A probe set of {kind} cannot be made for inputs of whole numbers ({base.inputs.dtype}), such as tokens: "
            "neither noise nor means are tokens. Take samples of the data instead: probe=1."
        )
    return _noise(base, classes, seed) if kind == "noise" else _means(base, train, classes)


def _noise(base: Samples, classes: int, seed: int) -> Samples:
    generator = torch.Generator().manual_seed(integer(seed, purpose("probe of noise")))
    shape = (classes, *base.inputs.shape[1:])
    if base.inputs.dtype == torch.uint8:
        brightest = int(base.inputs.max())  # some data sets stop short of 255
        inputs = torch.randint(0, brightest + 1, shape, generator=generator, dtype=torch.uint8)
    else:
        inputs = torch.randn(shape, generator=generator).to(base.inputs.dtype)
    return replace(base, inputs=inputs, targets=torch.arange(classes))


def _means(base: Samples, train: Assignment, classes: int) -> Samples:
    total = torch.zeros((classes, *base.inputs.shape[1:]), dtype=torch.float64)
    counts = torch.zeros(classes, dtype=torch.int64)
    for client in torch.arange(train.clients)[:, None]:
        inputs, labels = base.take(train.rows(client)[0, : int(train.sizes(client))], torch.float64)
        held = torch.bincount(labels, minlength=classes)
        told = (held >= _LEAST)[labels]
        # Each client reports means and counts; the server adds mean times count.
        total.index_add_(0, labels[told], inputs[told].to(total.dtype))
        counts += torch.where(held >= _LEAST, held, 0)
    reported = counts.nonzero()[:, 0]
    if not len(reported):
        raise CounterpoiseError(
            f"No client holds {_LEAST} samples of a class, so none reports a class mean for the probe."
        )
    per_class = counts[reported].view(-1, *[1] * (total.ndim - 1))
    return Samples((total[reported] / per_class).to(torch.float32), reported)
