"""What the files of a run's folder may hold: one model for each, checked whenever a file is read.

All code that reads a kept file uses these models. So a file that somebody else wrote, or that a disk damaged, leads to
one clear error and never reaches a computation.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from counterpoise.engine.rounds.records import MOST_ROUNDS, Outcome, RoundRecord
from counterpoise.errors import CounterpoiseError
from counterpoise.verdict import Action, Verdict

__all__ = ["STATUSES", "Batches", "Form", "Holdings", "Index", "Settings", "checked", "record", "shown"]

STATUSES = ("running", "stopped", "finished", "diverged", "failed")

Finite = Annotated[float, Field(allow_inf_nan=False)]
Number = Annotated[int, Field(ge=-(10**308), le=10**308)] | Finite
"""A finite number within the range of a float; a claimed data count may be that large."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Round = Annotated[int, Field(ge=1, le=MOST_ROUNDS)]
Numbered = Annotated[int, Field(ge=0, lt=10**9)]
"""A client's number."""
Client = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")]
"""A client's number as a key: keys in JSON are strings."""
ByClient = dict[Client, Number | None]


class Form(BaseModel):
    """Base of all models: types are not converted, and values cannot be changed."""

    model_config = ConfigDict(strict=True, frozen=True, defer_build=True)


class _Metrics(Form):
    """A line of ``metrics.jsonl``; every field not listed here is a metric."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", defer_build=True)
    __pydantic_extra__: dict[str, Number | None]

    round: Round
    seconds: Annotated[Number, Field(ge=0)] = 0.0
    bytes_up: Count = 0
    bytes_down: Count = 0
    bytes_server: Count = 0
    bytes_clients: Count = 0
    memory: Count = 0
    facts: dict[str, Number] = {}
    skipped: str = ""


class _Verdict(Form):
    claimed: Number
    estimated: Number | None
    low: Number | None
    high: Number | None
    z: Number | None
    action: Action
    reason: str = ""


class _Clients(Form):
    """A line of ``clients.jsonl``."""

    round: Round
    cohort: list[Numbered] = []
    claims: ByClient = {}
    weights: ByClient | None = None
    excluded: dict[Client, str] = {}
    notes: dict[str, ByClient] = {}
    liars: list[Numbered] = []
    verdicts: dict[Client, _Verdict] = {}
    metrics: dict[str, ByClient] = {}


class Index(Form):
    """``checkpoint.json``."""

    schema_: Literal[1] = Field(alias="schema")
    run: str
    round: Annotated[int, Field(ge=0, le=MOST_ROUNDS)]
    status: Literal["running", "stopped", "finished", "diverged", "failed"]
    state: str
    rows: dict[Annotated[str, Field(pattern=r"^[0-9]{1,16}(-[0-9]{1,16})?$")], str]
    records: dict[str, str] = {}
    """Digests of the ledgers up to this round, and of federation.json; earlier versions wrote none."""
    lengths: dict[str, list[Annotated[tuple[Numbered, Positive, Positive], Field(strict=False)]]] = {}
    """What `Lengths` remembers; earlier versions wrote none."""


class Holdings(Form):
    """``federation.json``."""

    clients: Numbered
    sizes: list[Count] | None = None
    shown: list[Numbered] = []
    labels: list[list[Count]] | None = None
    client_names: list[str] | None = None
    class_names: list[str] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Every client has a size, and every client in `shown` has a count of each label."""
        if self.sizes is not None and len(self.sizes) != self.clients:
            raise ValueError(f"it lists {len(self.sizes)} sizes for {self.clients} clients")
        if self.labels is not None and (len(self.labels) != len(self.shown) or len({*map(len, self.labels)}) > 1):
            raise ValueError("its label counts do not match the clients in shown")
        if self.client_names is not None and len(self.client_names) != self.clients:
            raise ValueError(f"it lists {len(self.client_names)} names for {self.clients} clients")
        if self.labels and self.class_names is not None and len(self.class_names) != len(self.labels[0]):
            raise ValueError(f"it lists {len(self.class_names)} names for {len(self.labels[0])} classes")
        return self


class _Batch(Form):
    from_round: Round
    runs: Annotated[Count, Field(ge=1)]
    """1 is the run alone; the other fields are then missing."""
    clients: Count | None = None
    backend: str | None = None
    chunk: Count | None = None
    compile: bool | None = None


class Batches(Form):
    """``batch.json``: the batches of runs that a run trained in, one after the other."""

    batches: list[_Batch]


class Settings(Form):
    """What every reader of a ``config.toml`` relies on, whatever version wrote it."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    rounds: Annotated[int, Field(ge=0, le=MOST_ROUNDS)] = 0


Checked = TypeVar("Checked", bound=BaseModel)
_BRANCHES = ("constrained-int", "float", "int", "[key]")
"""Words that pydantic adds to the location of a mistake."""


def checked(form: type[Checked], value: Any, where: str, remedy: str = "Replace it with an intact copy.") -> Checked:
    """Validate a value. The error names the wrong field, what it holds, what it should hold, and the remedy."""
    try:
        return form.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"] if part not in _BRANCHES)
        said = first["msg"].removeprefix("Value error, ")
        if first["loc"][-1:] == ("constrained-int",) and not isinstance(first["input"], int | float):
            said = "Input should be a number"  # whole or not: a `Number` is either
        if first["type"] == "missing":
            what = f"its field {name} is missing"
        else:
            what = f"its field {name} is {shown(first['input'])}: {said[0].lower()}{said[1:]}" if name else said
        raise CounterpoiseError(f"{where} is damaged or was not written by counterpoise: {what}. {remedy}") from None


def shown(value: Any) -> str:
    """A value that somebody else wrote, shortened."""
    try:
        return reprlib.repr(value)
    except ValueError:
        return "a number with thousands of digits"


def record(metrics: Mapping[str, Any], clients: Mapping[str, Any], where: str) -> RoundRecord:
    """Make a round's record from its lines in the two files."""
    m, c = checked(_Metrics, metrics, f"{where}/metrics.jsonl"), checked(_Clients, clients, f"{where}/clients.jsonl")
    if m.round != c.round:
        raise CounterpoiseError(
            f"{where} is damaged: metrics.jsonl has round {m.round}, but clients.jsonl has round {c.round}."
        )
    outcome = Outcome(
        _numbers(c.claims),
        None if c.weights is None else _numbers(c.weights),
        {int(client): reason for client, reason in c.excluded.items()},
        m.skipped,
        {name: _numbers(values) for name, values in c.notes.items()},
        {int(client): Verdict(**vars(verdict)) for client, verdict in c.verdicts.items()},
        m.facts,
    )
    return RoundRecord(
        m.round,
        tuple(c.cohort),
        outcome,
        {name: math.nan if value is None else value for name, value in m.__pydantic_extra__.items()},
        {name: _numbers(values) for name, values in c.metrics.items()},
        m.seconds,
        m.bytes_up,
        m.bytes_down,
        m.memory,
        tuple(c.liars),
        m.bytes_server,
        m.bytes_clients,
    )


def _numbers(values: Mapping[str, int | float | None]) -> dict[int, Any]:
    """JSON has no NaN: null stands for it."""
    return {int(client): math.nan if value is None else value for client, value in values.items()}
