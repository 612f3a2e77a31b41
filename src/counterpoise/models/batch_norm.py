"""Batch norm in a federation: the user says what becomes of its statistics, and its layers carry that choice."""

from __future__ import annotations

import copy
from typing import Literal, cast, get_args

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin

from counterpoise.errors import CounterpoiseError, takes_only_its_options, unknown
from counterpoise.models.copies import check_module

__all__ = ["NORMS", "Norm", "batch_norms", "norm_of", "with_norm"]

Norm = Literal["local", "average", "batch"]
NORMS: tuple[Norm, ...] = get_args(Norm)


@takes_only_its_options()
def with_norm(model: nn.Module, norm: Norm) -> nn.Module:
    """A copy of the model whose batch norms train as `norm` says.

    ``"local"``: running statistics, scales and shifts stay on the client (FedBN), whose own model is measured.
    ``"average"``: clients train with the server's running statistics, report theirs, and the server averages them.
    ``"batch"``: there are no running statistics. A batch is normalised by its own, in training and in evaluation; a set
    of samples is evaluated as one batch.

    >>> norm_of(with_norm(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), "batch"))
    'batch'
    """
    check_module(model, "with_norm")
    if norm not in NORMS:
        raise unknown("norm", norm, NORMS)
    if not batch_norms(model):
        raise CounterpoiseError("with_norm: the model has no batch norm (nn.BatchNorm1d, 2d or 3d).")
    for name, layer in batch_norms(model).items():
        _check(f"with_norm: the module {name or type(layer).__name__!r} ({type(layer).__name__})", layer, norm)
    model = copy.deepcopy(model)
    for layer in batch_norms(model).values():
        layer.federated = norm  # type: ignore[assignment]
        if norm == "batch":
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    return model


def _check(shown: str, layer: _BatchNorm, norm: Norm) -> None:
    if isinstance(layer, LazyModuleMixin):
        raise CounterpoiseError(f"{shown} does not know its channels yet. Call the model once before.")
    if isinstance(layer, nn.SyncBatchNorm):
        raise CounterpoiseError(
            f"{shown} takes the statistics of several processes together, and each client has its own. "
            "Use nn.BatchNorm1d, 2d or 3d."
        )
    if type(layer).forward is not _BatchNorm.forward:
        raise CounterpoiseError(
            f"{shown} has a forward of its own, which would be replaced. Use nn.BatchNorm1d, 2d or 3d."
        )
    if norm != "batch" and layer.running_mean is None:
        raise CounterpoiseError(
            f"{shown} keeps no running statistics, so that {norm!r} has none to work with. Use 'batch', or "
            "track_running_stats=True."
        )


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """A model's batch norms by name, whether a choice was made or not."""
    return {name: child for name, child in model.named_modules() if isinstance(child, _BatchNorm)}


def norm_of(model: nn.Module) -> Norm | None:
    """The choice that was made for a model's batch norms; None if there is none.

    An error names a layer without the choice that others have.
    """
    found = {name: getattr(layer, "federated", None) for name, layer in batch_norms(model).items()}
    if len({*found.values()}) > 1:
        first, *_, other = sorted(found, key=lambda name: str(found[name]))
        raise CounterpoiseError(
            f"The model's batch norms {first!r} and {other!r} have different choices, {found[first]!r} and "
            f"{found[other]!r}. Make one for the whole model: cp.models.with_norm(model, {NORMS[0]!r})."
        )
    return cast(Norm | None, next(iter(found.values()), None))
