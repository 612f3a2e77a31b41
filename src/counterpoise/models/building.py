"""From what a user gives as a model (a module, a factory, a name) to the module that a run starts from."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from counterpoise.blame import place_of
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation
from counterpoise.memory import bytes_in_words, machine_memory, out_of_memory
from counterpoise.models.registry import MODELS
from counterpoise.randomness import integer, purpose

__all__ = ["Model", "build_model"]

_COPIES = 4
"""A run holds at least this many copies of the model: the user's, the server's, a client's and its gradient."""

Model = nn.Module | Callable[..., nn.Module] | str
"""A module, a factory (called with `shape` and `classes` if it takes them), or a model's name."""


def _check_memory(factory: Callable[..., nn.Module], given: Mapping[str, object]) -> None:
    """Refuse a model that does not fit before any of it is allocated: torch's device meta has shapes but no numbers."""
    try:
        with torch.device("meta"):
            needs = _COPIES * sum(p.numel() * p.element_size() for p in factory(**given).parameters())
    except (RuntimeError, OverflowError):  # the size alone overflows
        raise CounterpoiseError("A model with these options is larger than any memory. Make it smaller.") from None
    has = machine_memory()
    if has is not None and needs > has:
        raise CounterpoiseError(
            f"The model takes {bytes_in_words(needs / _COPIES)}, and training it at least {bytes_in_words(needs)} "
            f"({_COPIES} copies); this machine has {bytes_in_words(has)}. Make the model smaller."
        )


def build_model(model: Model, federation: Federation, seed: int) -> nn.Module:
    """The initial module. A factory's random weights are a function of the seed alone."""
    if isinstance(model, nn.Module):
        return _shaped(_copied(model), federation, seed) if _is_lazy(model) else model
    if isinstance(model, str):
        model = MODELS[model].factory
    if not callable(model):
        raise CounterpoiseError(f"model must be a module, a factory of one or a name, not {model!r}.")
    facts = {"shape": federation.shape, "classes": federation.classes}
    try:
        parameters: Mapping[str, object] = inspect.signature(model).parameters
    except ValueError:  # some that are written in C do not tell
        parameters = {}
    given = {name: fact for name, fact in facts.items() if name in parameters}
    if given.get("classes", 0) is None:
        raise CounterpoiseError(
            "This model's factory asks for the number of classes, and these targets are not class numbers. If they are "
            "classes, give whole numbers, y.astype('int64'); otherwise give a module, with a loss of your own."
        )
    if getattr(model, "func", model) in [entry.factory for entry in MODELS]:
        _check_memory(model, given)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(integer(seed, purpose("initial weights")))  # and no GPU's
        try:
            module = model(**given)
        except TypeError as error:
            raise CounterpoiseError(
                f"The model's factory cannot be called with shape and classes alone: {error}."
            ) from error
        except (MemoryError, RuntimeError) as error:
            if out_of_memory(error):
                raise CounterpoiseError(f"The model does not fit into this machine's memory: {error}.") from error
            raise
    if not isinstance(module, nn.Module):
        raise CounterpoiseError(f"The model's factory returned {type(module).__name__}, not an nn.Module.")
    return _shaped(module, federation, seed) if _is_lazy(module) else module


def _is_lazy(module: nn.Module) -> bool:
    """Whether the module has layers such as `nn.LazyLinear`, which get their sizes from the first batch."""
    return any(map(is_lazy, module.state_dict().values()))


def _copied(module: nn.Module) -> nn.Module:
    """A copy, so that the user's module keeps its lazy layers and the next run can shape them by its own seed."""
    if any(map(is_lazy, module.buffers())):  # which torch cannot copy
        raise CounterpoiseError("The model has a lazy batch norm. Call the model once before, or give a factory of it.")
    return copy.deepcopy(module)


def _shaped(module: nn.Module, federation: Federation, seed: int) -> nn.Module:
    """A module whose lazy layers have met a batch; their random weights are a function of the seed alone."""
    shape = federation.shape
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(integer(seed, purpose("lazy weights")))
        try:
            module.eval()(torch.zeros(2, *shape))
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            where = f" ({place})" if (place := place_of(error)) else ""
            raise CounterpoiseError(
                f"The model cannot take this federation's samples of shape {shape}: {error}{where}"
            ) from error
    return module.train()
