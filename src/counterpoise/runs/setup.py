"""What a run is made of, as objects."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from counterpoise.engine.backends.settings import Engine
from counterpoise.engine.rounds.admission import Limits
from counterpoise.engine.rounds.adversaries import Adversaries
from counterpoise.engine.rounds.evaluation import Evaluation
from counterpoise.engine.rounds.loop import Loop
from counterpoise.engine.rounds.simulation import Simulation
from counterpoise.engine.scores import Loss, Metric
from counterpoise.errors import CounterpoiseError, brief
from counterpoise.federation import Availability, Federation, Sampler
from counterpoise.local import Local
from counterpoise.memory import bytes_in_words, machine_memory, out_of_memory
from counterpoise.method import Method
from counterpoise.models import MODELS
from counterpoise.randomness import check_seed, integer, purpose

__all__ = ["MOST_ROUNDS", "Model", "Setup", "build_model", "check_rounds"]

_COPIES = 4
"""Of the model, at the least: the user's, the server's, a client's and its gradient."""
MOST_ROUNDS = 10**9
"""More rounds are taken for a mistake."""

Model = nn.Module | Callable[..., nn.Module] | str
"""A module, a factory (called with `shape` and `classes` if it takes them), or a model's name."""


@dataclass(frozen=True)
class Setup:
    """Everything `Simulation` is made of."""

    method: Method
    federation: Federation
    model: Model
    rounds: int
    cohort: int | float | Availability | Sampler | None
    local: Local
    seed: int
    engine: Engine
    evaluation: Evaluation
    limits: Limits
    loss: Loss | None = None
    metrics: Mapping[str, Metric] | None = None
    adversary: Adversaries | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_rounds(self.rounds)
        for name, kind, how in (
            ("method", Method, "cp.methods.fedavg()"),
            ("federation", Federation, "cp.load(...)"),
            ("local", Local, "cp.Local(...)"),
            ("engine", Engine, "cp.Engine(...)"),
            ("evaluation", Evaluation, "cp.Evaluation(...)"),
            ("limits", Limits, "cp.Limits(...)"),
        ):
            if not isinstance(getattr(self, name), kind):
                found = type(getattr(self, name)).__name__
                raise CounterpoiseError(f"{name} must be made by {how}; this is of type {found}.")

    def loop(self) -> Loop:
        """The loop of a deployment's server, whose clients train elsewhere."""
        return self.simulation().loop

    def simulation(self) -> Simulation:
        """A simulation at its beginning."""
        return Simulation(
            self.method,
            self.federation,
            build_model(self.model, self.federation, self.seed),
            cohort=self.cohort,
            local=self.local,
            loss=self.loss,
            metrics=self.metrics,
            seed=self.seed,
            engine=self.engine,
            evaluation=self.evaluation,
            limits=self.limits,
            adversary=self.adversary,
        )


def check_rounds(rounds: object) -> None:
    """Refuse what cannot be a number of rounds."""
    if type(rounds) is not int or not 1 <= rounds <= MOST_ROUNDS:
        raise CounterpoiseError(f"rounds must be a whole number from 1 to {MOST_ROUNDS}, not {brief(rounds)}.")


def _check_memory(factory: Callable[..., nn.Module], given: Mapping[str, object]) -> None:
    """Refuse a model that does not fit, before any of it is allocated: torch's device meta has shapes and no numbers."""
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
        return model
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
            "This model's factory asks for the number of classes, and these targets are not class numbers."
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
    return module
