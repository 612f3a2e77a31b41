"""One trial pass before any training: do the model, the loss, the metrics and the data fit together?"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.overrides import TorchFunctionMode

from counterpoise.blame import place_of
from counterpoise.engine.clients.calling import outputs_of
from counterpoise.engine.clients.doubts import tell_doubts
from counterpoise.engine.clients.keyed import Keyed
from counterpoise.engine.clients.recurrent import Unrolled, drops
from counterpoise.engine.clients.tokens import check_tokens, embeddings_checked
from counterpoise.engine.scores import Metric, is_cross_entropy
from counterpoise.errors import CounterpoiseError, brief
from counterpoise.federation.federation import Federation
from counterpoise.models.batch_norm import NORMS, batch_norms, norm_of
from counterpoise.models.copies import sharing_copy
from counterpoise.trees import leaves, on, select

__all__ = ["Traits", "inspect_model"]

log = logging.getLogger(__name__)

_WHOLE = (
    ". These inputs are whole numbers, which models with an embedding take; other models need floating-point "
    "numbers (x.astype('float32')) or, for pictures, bytes (uint8)."
)


@dataclass(frozen=True)
class Traits:
    """What a trial showed about a module."""

    keyed: bool
    """It draws random numbers that `Keyed` replaces."""
    unkeyed: bool
    """It also draws random numbers that `Keyed` cannot replace; these repeat only for a fixed backend and chunk."""
    output: str | None = None
    """The trainable parameter nearest to the output; None if no path leads there."""
    tensors: tuple[tuple[int, int], ...] = ()
    """For each tensor that a forward pass makes: its numbers that do not depend on the batch, and those per sample."""

    def widest(self, samples: int) -> int:
        """How many numbers the largest tensor of a forward pass over this many samples has."""
        return max((fixed + each * samples for fixed, each in self.tensors), default=0)

    def most_samples(self, numbers: int) -> int:
        """The largest batch, of at least one sample, for which no tensor that grows with it exceeds this many numbers."""
        return max(1, min(((numbers - fixed) // each for fixed, each in self.tensors if each), default=numbers))


def inspect_model(model: nn.Module, federation: Federation, metrics: Mapping[str, Metric]) -> Traits:
    """Raise an error if the model cannot be trained on this data; otherwise return its traits."""
    _refuse_running_statistics(model)
    weights = [p for p in model.parameters() if p.requires_grad]
    if not weights:
        raise CounterpoiseError("The model has no trainable parameters; there is nothing to learn.")
    if not len(federation.base):
        raise CounterpoiseError("The federation holds no samples.")
    rows = torch.arange(min(2, len(federation.base)), device=federation.base.device)
    inputs, targets = on(weights[0].device, federation.base.take(rows, weights[0].dtype))
    trial = sharing_copy(model).train()
    _fix_norms(trial)
    with embeddings_checked(trial, inputs, federation):
        keyed, unkeyed = _draws(trial, inputs)
    with torch.no_grad():
        with _Made() as by_all:
            outputs = _run_or_explain(trial.eval(), inputs)
        if not isinstance(outputs, Tensor) or not outputs.ndim or len(outputs) != len(rows):
            raise CounterpoiseError(
                "The model must return one tensor with a row for each sample, or a dictionary whose logits are that, not "
                f"{_describe(outputs)}."
            )
        with _Made() as by_one:
            alone = outputs_of(trial, select(inputs, slice(1)))
        if not torch.allclose(alone, outputs[:1], rtol=1e-3, atol=1e-4):
            raise _unsteady(outputs_of(trial, inputs), outputs)
        usual = is_cross_entropy(metrics["loss"])
        if usual and isinstance(targets, Tensor) and targets.ndim == 1 and targets.is_floating_point():
            raise CounterpoiseError(
                "The loss cross-entropy needs class numbers or rows of chances as targets; for other numbers, give "
                "loss='squared-error'."
            )
        if usual:
            _check_classes(outputs, federation)
            tell_doubts(federation)
        if usual and federation.base.sequences:
            check_tokens(outputs, federation)
        for key, metric in metrics.items():
            name = key if key == "loss" else f"metric {key}"
            shown = f"The {name} cannot take the model's output of shape {tuple(outputs.shape)} and these targets"
            values = _call_or_explain(metric, shown, outputs, targets)
            if not isinstance(values, Tensor) or tuple(values.shape) != (len(rows),):
                raise CounterpoiseError(
                    f"The {name} must return one value per sample, shape ({len(rows)},), not {_describe(values)}; "
                    "for one number use reduction='none', for more take the mean over what is not the sample."
                )
            if not torch.allclose(
                metric(outputs[:1], select(targets, slice(1))), values[:1], rtol=1e-3, atol=1e-4, equal_nan=True
            ):
                raise CounterpoiseError(
                    f"The {name} of a sample depends on the other samples of its batch. A usual cause is an output "
                    f"of shape {tuple(outputs.shape)} broadcast against targets of shape {_shapes(targets)}: for one "
                    "output a sample, take outputs[:, 0]."
                )
    return Traits(keyed, unkeyed, _nearest(trial, inputs), _growing(by_one.sizes, by_all.sizes, len(rows)))


def _check_classes(outputs: Tensor, federation: Federation) -> None:
    """Refuse a model with fewer outputs than classes, and warn of one with more."""
    classes = federation.classes or 0
    if outputs.ndim < 2 or outputs.shape[1] < classes:
        raise CounterpoiseError(
            f"The model's output for a sample has shape {tuple(outputs.shape[1:])}, and the data has "
            f"{federation.classes} classes: it needs one number for each."
        )
    if outputs.ndim == 2 and outputs.shape[1] > classes > 0:
        _warn_of_more(outputs.shape[1], classes)


@functools.cache  # once, however many runs have such a model
def _warn_of_more(outputs: int, classes: int) -> None:
    log.warning(
        "The model has %d outputs for %d classes. If the data lacks some classes, name all of them with class_names; "
        "otherwise give the model %d outputs.",
        outputs,
        classes,
        classes,
    )


def _unsteady(again: Tensor, outputs: Tensor) -> CounterpoiseError:
    """Why a sample's output is not always the same: the model draws by chance, or it mixes samples."""
    if not torch.equal(again, outputs):
        return CounterpoiseError(
            "The model's output is random even in evaluation: the same samples give another output each time. Use "
            "nn.Dropout in place of F.dropout(x, p), or F.dropout(x, p, training=self.training)."
        )
    return CounterpoiseError(
        "The model's output for a sample depends on the other samples of its batch, which padding and evaluation would "
        "change. Replace the layer that mixes samples; for a batch norm of your own, use nn's and "
        "cp.models.with_norm(model, ...)."
    )


class _Made(TorchFunctionMode):
    """Records how many elements each new tensor has that a function returns; views of its arguments are not new."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        known = {tensor.untyped_storage().data_ptr() for tensor in leaves(args)}
        self.sizes += [t.numel() for t in leaves(given) if t.untyped_storage().data_ptr() not in known]
        return given


def _growing(by_one: list[int], by_all: list[int], samples: int) -> tuple[tuple[int, int], ...]:
    """`Traits.tensors`, from the tensors' sizes for one sample and for all samples of the trial."""
    if samples == 1:
        return tuple((0, size) for size in by_one)
    slopes = [(one, max(0, (size - one) // (samples - 1))) for one, size in zip(by_one, by_all, strict=False)]
    return tuple(dict.fromkeys((max(0, one - each), each) for one, each in slopes))


def _draws(trial: nn.Module, inputs: Any) -> tuple[bool, bool]:
    """Whether the model draws random numbers that `Keyed` replaces, and whether it draws others."""
    before = {name: buffer.clone() for name, buffer in trial.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng():
        drawn = torch.get_rng_state()
        unrolled = Unrolled() if drops(trial) else contextlib.nullcontext()
        with Keyed(torch.zeros((), dtype=torch.int64, device=next(leaves(inputs)).device)) as mode, unrolled:
            _run_or_explain(trial, inputs)
        unkeyed = not torch.equal(drawn, torch.get_rng_state())
    for name, buffer in trial.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise CounterpoiseError(
                f"The model's buffer {name!r} changes in a forward pass, which clients cannot share. "
                "Replace the module that keeps it by one without state."
            )
    return mode.calls > 0, unkeyed


def _nearest(trial: nn.Module, inputs: Any) -> str | None:
    """The trainable parameter that is the fewest operations away from the output, whatever the order of registration.

    A module that the model does not use has no path to the output. If several are equally near, the one registered
    last is taken. A single number, such as a temperature, does not count as a layer.
    """
    names = {id(p): name for name, p in trial.named_parameters() if p.requires_grad and p.ndim}
    with torch.enable_grad():
        node = outputs_of(trial, inputs).grad_fn
    level, seen = [node], {node}
    while level:
        found = [names.get(id(getattr(at, "variable", None))) for at in level]
        if any(found):
            return max((name for name in found if name), key=[*names.values()].index)
        ahead = [onward for at in level if at is not None for onward, _ in at.next_functions]
        level = [onward for onward in dict.fromkeys(ahead) if onward is not None and onward not in seen]
        seen.update(level)
    return None


def _refuse_running_statistics(module: nn.Module) -> None:
    """Refuse batch norms without a chosen norm, and other running statistics: they would leak between clients."""
    chosen = norm_of(module)
    for name, layer in batch_norms(module).items() if chosen is None else ():
        raise CounterpoiseError(
            f"The model's module {name or type(layer).__name__!r} ({type(layer).__name__}) keeps running statistics or "
            "normalises over a batch, which clients cannot share without a choice. "
            "Use cp.models.with_norm(model, norm) with a norm of "
            f"{', '.join(map(repr, NORMS))} (docs/models.md says what each does), or cp.models.with_group_norm(model)."
        )
    for name, child in module.named_modules():
        if isinstance(child, _NormBase) and child.running_mean is not None and name not in batch_norms(module):
            raise CounterpoiseError(
                f"The model's module {name or type(child).__name__!r} ({type(child).__name__}) keeps running "
                "statistics, which clients cannot share. Use track_running_stats=False."
            )


def _fix_norms(trial: nn.Module) -> None:
    """Make the trial's batch norms treat each sample alone, so that only other layers can mix samples."""
    for name, layer in batch_norms(trial).items():
        if not layer.training:
            raise CounterpoiseError(
                f"The model keeps its module {name!r} ({type(layer).__name__}) in evaluation mode while it trains, so "
                "its statistics would never move. Use a layer with fixed numbers, or let train() reach it."
            )
        layer.forward = partial(_map_alone, layer)  # type: ignore[method-assign]


def _map_alone(layer: _BatchNorm, x: Tensor) -> Tensor:
    layer._check_input_dim(x)  # type: ignore[no-untyped-call]
    channels = layer.num_features
    return F.batch_norm(x, x.new_zeros(channels), x.new_ones(channels), layer.weight, layer.bias, eps=layer.eps)


def _run_or_explain(model: nn.Module, inputs: Any) -> Any:
    """A model's outputs, or a sentence that says what it was given."""
    if isinstance(inputs, Tensor):
        shown = f"samples of shape {tuple(inputs.shape[1:])}"
    elif isinstance(inputs, dict):
        shown = f"samples, whose parts it is given as keywords, {', '.join(inputs)}"
    else:
        shown = f"samples, whose {len(inputs)} parts it is given one after the other"
    hint = _WHOLE if isinstance(inputs, Tensor) and not inputs.is_floating_point() else ""
    run = partial(outputs_of, model)
    return _call_or_explain(run, f"The model cannot take this federation's {shown}", inputs, hint=hint)


def _call_or_explain(call: Callable[..., Any], what: str, *arguments: Any, hint: str = "") -> Any:
    """Call a user's function, and turn its error into a sentence."""
    try:
        return call(*arguments)
    except CounterpoiseError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError) as error:
        where = f" ({place})" if (place := place_of(error)) else ""
        raise CounterpoiseError(f"{what}: {error}{where}{hint}") from error


def _shapes(tree: Any) -> str:
    return " and ".join(str(tuple(tensor.shape)) for tensor in leaves(tree))


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with {', '.join(map(str, value)) or 'nothing'}"
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else brief(value)
