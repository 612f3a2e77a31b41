"""How well outputs fit their targets: one number per sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from counterpoise.errors import CounterpoiseError, brief
from counterpoise.registry import Option, Registry

__all__ = [
    "IGNORED",
    "LOSSES",
    "METRICS",
    "Loss",
    "Metric",
    "Metrics",
    "accuracy",
    "cross_entropy",
    "is_cross_entropy",
    "limits_of",
    "named_metrics",
]

Metric = Callable[[Tensor, Tensor], Tensor]
"""``(outputs, targets) -> one number per sample``, for a batch."""
Loss = Metric
"""A metric that can be differentiated with respect to the outputs."""
Metrics = Mapping[str, Metric] | Sequence[str]
"""What models are measured by: your own functions by name, or names of metrics that are built in."""

LOSSES: Registry[Loss] = Registry("loss", called="loss(outputs, targets)")
METRICS: Registry[Metric] = Registry("metric", called="metric(outputs, targets)")


IGNORED = -100
"""A target that does not count, such as a target of padding; torch's cross-entropy uses the same number."""


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 if the largest output is the target's, else 0; for a row of targets, the mean over those that count."""
    if _are_rows(targets):
        return _mean_of_real((outputs.argmax(2) == targets).to(outputs.dtype), targets)
    return (outputs.argmax(1) == targets).to(outputs.dtype)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The usual loss of a classifier; for a row of targets, the mean over those that count.

    A row of fractions holds the chances of one sample's classes.
    """
    if _are_rows(targets):
        each = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED)
        return _mean_of_real(each.view(targets.shape), targets)
    return F.cross_entropy(outputs, targets, reduction="none")


def _are_rows(targets: Tensor) -> bool:
    """Whether each target is a row of class numbers; rows of fractions are chances of classes."""
    return targets.ndim == 2 and not targets.is_floating_point()


def real_places(inputs: Any, targets: Any) -> Tensor | None:
    """Which places ``[B, T]`` of texts are not padding; None if neither targets nor inputs say so."""
    if isinstance(targets, Tensor) and _are_rows(targets):
        return targets != IGNORED
    mask = inputs.get("attention_mask") if isinstance(inputs, dict) else None
    return None if mask is None else mask != 0


def _mean_of_real(values: Tensor, targets: Tensor) -> Tensor:
    """The mean of ``[B, T]`` over the places of each sample whose target counts; 0, not NaN, if none does."""
    real = targets != IGNORED
    return torch.where(real, values, 0).sum(1) / real.sum(1).clamp(min=1)


_LIMITS: dict[Metric, tuple[float, float]] = {accuracy: (0.0, 1.0), cross_entropy: (0.0, inf)}


def limits_of(metric: Metric) -> tuple[float, float]:
    """The smallest and the largest value that a metric can take; infinite for a metric that is not built in."""
    found: tuple[float, float] = getattr(metric, "limits", None) or _LIMITS.get(metric, (-inf, inf))
    return found


def named_metrics(given: Metrics | Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    """Metrics by the names that they have in the record. A choice has options: ``{"name": "top-k", "k": 3}``.

    One of the user's own is recorded by the name of its function: ``my_project.rules:recall`` as ``recall``.
    """
    if isinstance(given, Mapping) and all(isinstance(name, str) for name in given):
        return dict(given)
    if not isinstance(given, list | tuple) or not all(
        isinstance(one, str) or (isinstance(one, Mapping) and "name" in one) for one in given
    ):
        raise CounterpoiseError(
            "metrics must be a list of names, such as ['accuracy', 'top-k'], or a dictionary of names and functions of "
            f"outputs and targets, such as {{'top5': top5}}, not {brief(given)}."
        )
    chosen = [{"name": one} if isinstance(one, str) else dict(one) for one in given]
    made = {str(choice["name"]).rpartition(":")[2]: METRICS.make(choice.pop("name"), **choice) for choice in chosen}
    if len(made) < len(given):
        raise CounterpoiseError(f"metrics: a metric is named twice in {brief(given)}.")
    return made


def _bounded(metric: Metric, high: float) -> Metric:
    """A metric that is at least 0 and says so."""
    metric.limits = (0.0, high)  # type: ignore[attr-defined]
    return metric


@METRICS.register("accuracy")
def _accuracy() -> Metric:
    """The share of samples whose largest output is the target's."""
    return _bounded(lambda outputs, targets: accuracy(outputs, targets), 1.0)


@METRICS.register("top-k")
def _top_k(k: Annotated[int, Option("how many of the largest outputs count", low=1)] = 5) -> Metric:
    """The share of samples whose target is among the k largest outputs."""

    def top_k(outputs: Tensor, targets: Tensor) -> Tensor:
        largest = outputs.topk(min(k, outputs.shape[1]), dim=1).indices
        return (largest == targets[:, None]).any(1).to(outputs.dtype)

    return _bounded(top_k, 1.0)


@METRICS.register("brier")
def _brier() -> Metric:
    """The Brier score ``sum_c (p_c - 1[c = y])^2`` of the softmax p: 0 is perfect, 2 the worst."""

    def brier(outputs: Tensor, targets: Tensor) -> Tensor:
        truth = F.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
        return (outputs.softmax(1) - truth).square().sum(1)

    return _bounded(brier, 2.0)


@METRICS.register("squared-error")
def _squared_error() -> Metric:
    """The squared difference of output and target, averaged over the numbers of a sample."""
    return _bounded(lambda outputs, targets: _difference(outputs, targets).square().mean(1), inf)


@METRICS.register("absolute-error")
def _absolute_error() -> Metric:
    """The absolute difference of output and target, averaged over the numbers of a sample."""
    return _bounded(lambda outputs, targets: _difference(outputs, targets).abs().mean(1), inf)


@LOSSES.register("cross-entropy")
def _cross_entropy() -> Loss:
    """The usual loss of a classifier."""

    def chosen(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets)

    chosen.is_cross_entropy = True  # type: ignore[attr-defined]
    return _bounded(chosen, inf)


def is_cross_entropy(loss: Loss) -> bool:
    """Whether a loss is the built-in cross-entropy: the function itself, or what its name makes."""
    return loss is cross_entropy or getattr(loss, "is_cross_entropy", False)


@LOSSES.register("squared-error")
def _squared_loss() -> Loss:
    """The squared difference of output and target, averaged over the numbers of a sample."""
    return _squared_error()


def _difference(outputs: Tensor, targets: Tensor) -> Tensor:
    """``[S, numbers]``; a model with one output may give it with or without an axis of its own."""
    given, wanted = outputs.reshape(len(outputs), -1), targets.reshape(len(targets), -1)
    if given.shape != wanted.shape:
        raise CounterpoiseError(
            f"The model gives {given.shape[1]} numbers for a sample, and its target has {wanted.shape[1]}; "
            "for their difference, both need as many."
        )
    return given - wanted
