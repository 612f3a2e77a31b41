"""The one description of a run. The simulator, a node, Flower's strategy and a kept configuration are made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict, Unpack

from counterpoise.choices import parse_choice
from counterpoise.engine.backends.settings import Engine
from counterpoise.engine.rounds.admission import Limits
from counterpoise.engine.rounds.adversaries import Adversaries
from counterpoise.engine.rounds.evaluation import Evaluation
from counterpoise.engine.rounds.records import MOST_ROUNDS
from counterpoise.engine.scores import LOSSES, Loss, Metrics
from counterpoise.errors import CounterpoiseError, brief
from counterpoise.federation import Availability, Federation, Sampler
from counterpoise.local import Local
from counterpoise.measures.stopping import When
from counterpoise.method import Method
from counterpoise.methods import METHODS
from counterpoise.models.building import Model
from counterpoise.randomness import check_seed

__all__ = ["Choice", "Settings", "Setup", "Training", "check_rounds"]


Choice = Method | str | tuple[str, Mapping[str, Any]]
"""A method: its name, perhaps with options in brackets; its name and a table of options; or the method itself."""


class Settings(TypedDict, total=False):
    """The settings of a run that have defaults; None stands for the default."""

    cohort: int | float | Availability | Sampler | None
    local: Local | None
    loss: Loss | str | None
    metrics: Metrics | None
    seed: int
    engine: Engine | None
    evaluation: Evaluation | None
    limits: Limits | None
    adversary: Adversaries | None
    stop: When | None


@dataclass(frozen=True)
class Training:
    """The clients' half of a run: what a client needs, and what it must agree on with the server."""

    method: Method
    model: Model
    local: Local = field(default_factory=Local)
    loss: Loss | None = None
    metrics: Metrics | None = None
    engine: Engine = field(default_factory=Engine)

    def __post_init__(self) -> None:
        _check_types(
            self,
            {
                "method": (Method, "cp.methods.fedavg()"),
                "local": (Local, "cp.Local(...)"),
                "engine": (Engine, "cp.Engine(...)"),
            },
        )
        if self.loss is not None and not callable(self.loss):
            raise CounterpoiseError(
                "loss must be a function of outputs and targets that returns one value per sample, "
                f"or the name of a loss, such as 'squared-error', not {brief(self.loss)}."
            )
        if not any(part.apply is not None for part in self.method.update):
            raise CounterpoiseError(
                f"method {self.method.name} has no part in its slot update that makes the server's new model, so the "
                "model would never change. Add one: cp.Method(..., update=(cp.parts.server_step(),))."
            )

    @classmethod
    def of(cls, method: Choice, model: Model, **given: Any) -> Training:
        """The training with these settings; those that are None have their defaults."""
        settings = {name: value for name, value in given.items() if value is not None}
        if isinstance(loss := settings.get("loss"), str):
            settings["loss"] = LOSSES.make(loss)
        return cls(_made(method), model, **settings)


@dataclass(frozen=True)
class Setup:
    """A whole run: the clients' half and what only the server needs."""

    training: Training
    federation: Federation
    rounds: int
    cohort: int | float | Availability | Sampler | None = None
    seed: int = 0
    evaluation: Evaluation = field(default_factory=Evaluation)
    limits: Limits = field(default_factory=Limits)
    adversary: Adversaries | None = None
    stop: When | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_rounds(self.rounds)
        _check_types(
            self,
            {
                "federation": (Federation, "cp.load(...) or cp.Federation.from_datasets(...)"),
                "evaluation": (Evaluation, "cp.Evaluation(...)"),
                "limits": (Limits, "cp.Limits(...)"),
                "stop": (When | None, "cp.when('accuracy', above=0.9)"),
            },
        )

    @classmethod
    def of(cls, method: Choice, federation: Federation, model: Model, rounds: int, **given: Unpack[Settings]) -> Setup:
        """A run from the arguments of `counterpoise.simulate`."""
        settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        clients = {name: settings.pop(name) for name in {f.name for f in fields(Training)} & settings.keys()}
        return cls(Training.of(method, model, **clients), federation, rounds, **settings)


def _made(method: Any) -> Any:
    """The method that a choice names; anything else as it is."""
    match method:
        case str():
            options = parse_choice(method)
        case (str() as name, Mapping() as given):
            options = {**given, "name": name}
        case _:
            return method
    return METHODS.make(options.pop("name"), **options)


def check_rounds(rounds: object) -> None:
    """Refuse what cannot be a number of rounds."""
    if type(rounds) is not int or not 1 <= rounds <= MOST_ROUNDS:
        raise CounterpoiseError(f"rounds must be a whole number from 1 to {MOST_ROUNDS}, not {brief(rounds)}.")


def _check_types(made: object, kinds: Mapping[str, tuple[Any, str]]) -> None:
    for name, (kind, how) in kinds.items():
        if not isinstance(found := getattr(made, name), kind):
            raise CounterpoiseError(f"{name} must be made by {how}; this is of type {type(found).__name__}.")
