"""A run's configuration: check it and write it. `counterpoise.runs.experiments`, which reads it, is exported here too.

A configuration is complete: with its seed, it determines every number of a run. A user's own objects (a module, arrays,
a loss) cannot be written down. They appear as ``name = "own"`` with a fingerprint, and must be given again to resume.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from counterpoise.engine.backends.settings import Engine, check_options
from counterpoise.engine.rounds.admission import Limits
from counterpoise.engine.rounds.evaluation import Evaluation
from counterpoise.errors import CounterpoiseError, brief, unknown
from counterpoise.measures.stopping import When
from counterpoise.own import own_part
from counterpoise.runs.experiments import assign, choice, override, preset_names, read
from counterpoise.runs.paper import Choice, PaperConfig
from counterpoise.runs.places import meant

__all__ = ["SCHEMA", "Config", "assign", "override", "parse", "preset_names", "read"]

SCHEMA = 1
OWN = "own"


Cohort = Annotated[
    int | float | dict[str, Any] | None, BeforeValidator(lambda v: choice(v) if isinstance(v, str | Mapping) else v)
]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataConfig(_Table):
    name: str
    """A named data set, a file or folder of your own, ``flwr:NAME``, or a function of your own, ``module:name``."""
    partition: Choice | None = None
    """How samples are dealt to clients."""
    test: float | None = None
    """The fraction of each client's data that becomes the server's test set, for data that have none."""
    heldout: float = 0.2
    """The fraction of each client's data that is kept to measure its own accuracy."""
    probe: Annotated[int, Field(ge=0)] | Literal["noise", "means"] = 0
    """Samples per class that the server takes before the rest is dealt. ``noise`` and ``means`` take none."""
    proxy: int = Field(0, ge=0)
    """Samples that the server takes before the rest is dealt."""
    seed: int | None = Field(None, ge=0)
    """The seed of the partition; by default the run's seed."""
    scaling: str | dict[str, list[float]] | None = None
    """How bytes become numbers: ``unit`` (0 to 1), ``centred`` (-1 to 1), ``standard`` or ``per-picture`` (mean 0 and
    standard deviation 1), or a table with ``mean`` and ``deviation`` for each channel."""
    features: Choice | None = None
    """How clients see pictures differently."""
    pool: bool = False
    """Deal the test set to clients too."""
    skewed_test: bool = False
    """Make the test set one copy for each client, as that client sees it. With 100 clients, it is 100 times as large,
    and so is the time that an evaluation takes."""
    samples: int | None = Field(None, ge=1)
    """Keep this many training samples, drawn at random; by default all."""
    columns: dict[str, str | list[str]] | None = None
    """Which columns of a table are ``inputs``, ``targets`` and ``identity``; of pictures, which folders are the
    ``targets``: ``inner`` or ``outer``."""
    resize: int | list[int] | None = None
    """The size of a folder's pictures: a number, or height and width."""
    options: dict[str, Any] | None = None
    """Options of a function of the user's own that makes the federation."""
    fingerprint: str | None = None
    """A digest of the data. Runs write it; leave it out of your own files."""


class LocalConfig(_Table):
    epochs: int = 1
    """Passes over a client's data in a round."""
    batch: int = 32
    """Samples in a batch."""
    steps: int | list[int] | None = None
    """Batches in a round instead of epochs: one number for all clients, or one per client."""
    memory: float | list[float] | None = None
    """GiB that a client has for what a method does besides training, for all clients or for each."""
    optimizer: Choice = {"name": "sgd", "lr": 0.1}
    """What clients train with."""
    schedule: Choice = {"name": "constant"}
    """The learning rate over rounds."""
    augment: Choice | None = None
    """How pictures are changed at random in training."""
    clip: float | None = None
    """The longest gradient that enters the optimiser; longer ones are scaled down to it."""


def _table_of(kind: type) -> type[_Table]:
    """A table with the fields and defaults of a dataclass.

    The dataclass itself is not constructed, because it may ask for a GPU that this machine does not have.
    """
    hints = get_type_hints(kind)
    columns: dict[str, Any] = {
        f.name: (hints[f.name], ... if f.default is MISSING else f.default) for f in fields(kind)
    }
    table: type[_Table] = create_model(kind.__name__, __base__=_Table, **columns)
    return table


EngineConfig, EvaluationConfig, LimitsConfig, StopConfig = map(_table_of, (Engine, Evaluation, Limits, When))


class Config(_Table):
    """The complete configuration of a run."""

    schema_: int = Field(SCHEMA, alias="schema")
    """The version of the format; leave it out of your own files."""
    rounds: int = Field(ge=1)
    """Number of rounds."""
    cohort: Cohort = None
    """Who takes part in a round: a number of clients, a fraction of them, or a choice; by default all."""
    seed: int = Field(0, ge=0, lt=2**63)
    """The seed of all random choices."""
    data: Annotated[DataConfig, BeforeValidator(lambda v: {"name": v} if isinstance(v, str) else v)]
    """The data set, and how it is dealt to clients."""
    model: Choice
    """The model that clients train."""
    method: Choice
    """The method by which clients and server train it."""
    loss: Choice | None = None
    """The loss of a sample; by default cross-entropy."""
    metrics: list[Choice] | None = None
    """What is measured beside the loss; by default accuracy."""
    local: LocalConfig = LocalConfig()
    """How a client trains in a round."""
    adversary: Annotated[list[Choice], BeforeValidator(lambda v: v if isinstance(v, list) else [v])] = []
    """Clients that lie or fail."""
    engine: EngineConfig = EngineConfig()  # type: ignore[valid-type]
    """How the work is done: device, backend, threads, precision."""
    evaluation: EvaluationConfig = EvaluationConfig()  # type: ignore[valid-type]
    """When models are measured. 0 means never; any other number measures the last round too."""
    limits: LimitsConfig = LimitsConfig()  # type: ignore[valid-type]
    """Bounds on what a client may send."""
    stop: StopConfig | None = None  # type: ignore[valid-type]
    """When the run ends before its last round; at least one condition must be given."""
    frozen: str | None = None
    """A digest of the model's frozen weights. Runs write it."""
    own: dict[str, str] = {}
    """The user's own objects that must be given again to resume: the argument, and the object's name."""
    code: dict[str, str] = {}
    """SHA-256 of each source file of the user's own code that is given by name."""
    objects: dict[str, Annotated[str, Field(pattern=r"^\S+ [0-9a-f]{16} [0-9a-f]{16}$")]] = {}
    """For each object of the user's own, a digest of its code and one of its values (`counterpoise.runs.objects`)."""
    paper: PaperConfig = Field(PaperConfig(), exclude=True)
    """Where an experiment comes from and what was published. It has no effect on a run."""

    @property
    def asked_for(self) -> list[str]:
        """The user's own objects, by the arguments of `resume` that take them again."""
        named = {"federation": self.data.name, "method": self.method["name"], "model": self.model["name"]}
        return [*(what for what, name in named.items() if name == OWN), *self.own]

    def plain(self) -> dict[str, Any]:
        """As plain values for TOML, without those that are None."""
        empty = {name for name in ("own", "adversary", "code", "objects") if not getattr(self, name)}
        dumped = self.model_dump(by_alias=True, exclude_none=True, exclude=empty)
        if self.data.name == OWN or own_part(self.data.name):
            # The defaults of `load` say nothing about a user's own data.
            dumped["data"] = self.data.model_dump(exclude_none=True, exclude_defaults=True)
        # TOML needs simple values before tables.
        return dict(sorted(dumped.items(), key=lambda item: isinstance(item[1], dict)))


def parse(values: Mapping[str, Any], where: str) -> Config:
    """Check a configuration. The error is one sentence that names the first wrong setting."""
    try:
        config = Config.model_validate(dict(values))
    except ValidationError as error:
        raise _sentence(error, where) from None
    if config.schema_ > SCHEMA:
        raise CounterpoiseError(
            f"{where} has schema {config.schema_}, but this version of counterpoise knows only {SCHEMA}. "
            "Upgrade counterpoise."
        )
    check_options(dict(config.engine))
    return config


_WRITTEN = ("schema_", "frozen", "own", "code", "objects", "fingerprint")
"""Settings that a run writes into its own folder and nobody sets, so no error advises them."""


def _sentence(error: ValidationError, where: str) -> CounterpoiseError:
    first = error.errors(include_url=False)[0]
    path = _known(first["loc"])
    name = ".".join(path)
    if first["type"] == "extra_forbidden":
        table: Any = Config
        for part in path[:-1]:
            table = _given(table.model_fields[part].annotation)
        known = [field.alias or key for key, field in table.model_fields.items() if key not in _WRITTEN]
        known = [".".join([*path[:-1], k]) for k in known]
        return unknown("setting", name, known, f"in {where}", meant(path, Config))
    if first["type"] == "missing":
        return CounterpoiseError(f"{where}: the setting {name} is missing.")
    if isinstance(told := first.get("ctx", {}).get("error"), CounterpoiseError):
        return CounterpoiseError(f"{where}, {name}: {told}")
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return CounterpoiseError(f"{where}: {name} {message}, not {brief(first['input'])}.")


def _known(location: tuple[int | str, ...]) -> list[str]:
    """The part of an error's location that the user wrote, without pydantic's own branches."""
    path: list[str] = []
    table: Any = Config
    for part in map(str, location):
        fields = getattr(table, "model_fields", {})
        names = {field.alias or key: field for key, field in fields.items()}
        if part not in names and not (fields and part == str(location[-1])):
            break
        path.append(part)
        table = _given(names[part].annotation) if part in names else None
    return path


def _given(annotation: Any) -> Any:
    """What a setting is if it is given: ``StopConfig`` of ``StopConfig | None``."""
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    return kinds[0] if len(kinds) == 1 and type(None) in get_args(annotation) else annotation
