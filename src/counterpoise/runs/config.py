"""A run's configuration as a file: read it, check it, override settings, write it.

A configuration is complete: with its seed, it determines every number of a run. A user's own objects (a module, arrays,
a loss) cannot be written down. They appear as ``name = "own"`` with a fingerprint, and must be given again to resume.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from counterpoise.engine.backends.settings import Engine
from counterpoise.engine.rounds.admission import Limits
from counterpoise.engine.rounds.evaluation import Evaluation
from counterpoise.errors import CounterpoiseError, brief, unknown
from counterpoise.runs.places import meant
from counterpoise.texts import Malformed, parse_toml, read_text

__all__ = ["SCHEMA", "Config", "assign", "override", "parse", "preset_names", "read", "split", "value"]

SCHEMA = 1
OWN = "own"


def _choice(value: Any) -> Any:
    """A named choice with options: ``"fedprox"`` or ``{name = "fedprox", mu = 0.1}``."""
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return dict(value)
    raise ValueError('must be a name, or a table with a name: { name = "...", option = ... }')


Choice = Annotated[dict[str, Any], BeforeValidator(_choice)]
Cohort = Annotated[
    int | float | dict[str, Any] | None, BeforeValidator(lambda v: _choice(v) if isinstance(v, str | Mapping) else v)
]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataConfig(_Table):
    name: str
    partition: Choice | None = None
    heldout: float = 0.2
    probe: Annotated[int, Field(ge=0)] | Literal["noise", "means"] = 0
    proxy: int = Field(0, ge=0)
    seed: int | None = Field(None, ge=0)
    """The seed of the partition; by default the run's seed."""
    scaling: str | None = None
    features: Choice | None = None
    samples: int | None = Field(None, ge=1)
    columns: dict[str, str] | None = None
    fingerprint: str | None = None


class LocalConfig(_Table):
    epochs: int = 1
    batch: int = 32
    steps: int | list[int] | None = None
    memory: float | list[float] | None = None
    optimizer: Choice = {"name": "sgd", "lr": 0.1}
    schedule: Choice = {"name": "constant"}
    augment: Choice | None = None


def _table_of(kind: type) -> type[_Table]:
    """A table with the fields and defaults of a dataclass.

    The dataclass itself is not constructed, because it may ask for a GPU that this machine does not have.
    """
    hints = get_type_hints(kind)
    columns: dict[str, Any] = {f.name: (hints[f.name], f.default) for f in fields(kind)}
    table: type[_Table] = create_model(kind.__name__, __base__=_Table, **columns)
    return table


EngineConfig, EvaluationConfig, LimitsConfig = map(_table_of, (Engine, Evaluation, Limits))


class PaperConfig(_Table):
    """Where an experiment comes from and what was published. It has no effect on a run, and runs do not keep it."""

    about: str = ""
    source: str = ""
    """The paper, and its table or figure."""
    methods: list[Choice] = []
    """The methods compared."""
    vary: dict[str, list[int | float | str]] = {}
    """Settings that the experiment varies, in every combination of their values."""
    measure: str = ""
    """What the numbers measure."""
    numbers: list[list[float]] = []
    """One row per method, one column per combination of settings."""
    note: str = ""


class Config(_Table):
    """The complete configuration of a run."""

    schema_: int = Field(SCHEMA, alias="schema")
    rounds: int = Field(ge=1)
    cohort: Cohort = None
    seed: int = Field(0, ge=0, lt=2**63)
    data: Annotated[DataConfig, BeforeValidator(lambda v: {"name": v} if isinstance(v, str) else v)]
    model: Choice
    method: Choice
    metrics: list[Choice] | None = None
    local: LocalConfig = LocalConfig()
    adversary: Annotated[list[Choice], BeforeValidator(lambda v: v if isinstance(v, list) else [v])] = []
    engine: EngineConfig = EngineConfig()  # type: ignore[valid-type]
    evaluation: EvaluationConfig = EvaluationConfig()  # type: ignore[valid-type]
    limits: LimitsConfig = LimitsConfig()  # type: ignore[valid-type]
    own: dict[str, str] = {}
    """The user's own objects that must be given again to resume: the argument, and the object's name."""
    paper: PaperConfig = Field(PaperConfig(), exclude=True)

    def plain(self) -> dict[str, Any]:
        """As plain values for TOML, without those that are None."""
        empty = {name for name in ("own", "adversary") if not getattr(self, name)}
        dumped = self.model_dump(by_alias=True, exclude_none=True, exclude=empty)
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
    return config


def _sentence(error: ValidationError, where: str) -> CounterpoiseError:
    first = error.errors(include_url=False)[0]
    path = _known(first["loc"])
    name = ".".join(path)
    if first["type"] == "extra_forbidden":
        table: Any = Config
        for part in path[:-1]:
            table = table.model_fields[part].annotation
        known = [field.alias or key for key, field in table.model_fields.items()]
        known = [".".join([*path[:-1], k]) for k in known]
        return unknown("setting", name, known, f"in {where}", meant(path, Config))
    if first["type"] == "missing":
        return CounterpoiseError(f"{where}: the setting {name} is missing.")
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
        table = names[part].annotation if part in names else None
    return path


def preset_names() -> list[str]:
    """The names of the presets that come with the package, with their folders: ``fedbac/figure-3``."""
    return sorted(_names(resources.files("counterpoise.presets")))


def _names(folder: Traversable, prefix: str = "") -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _names(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".toml"):
            yield prefix + entry.name.removesuffix(".toml")


def read(source: str) -> tuple[dict[str, Any], str]:
    """Read a preset or a TOML file: its values and its name.

    ``like = "fedbac/figure-3"`` in a file takes all settings from that preset that the file does not set itself.
    """
    values, name = _read(source)
    seen = [source]
    while "like" in values:
        like = values.pop("like")
        if not isinstance(like, str) or like in seen:
            raise CounterpoiseError(f"{source}: like must name another preset or file, not {brief(like)}.")
        seen.append(like)
        values = _over(_read(like)[0], values)
    return values, name


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables. A choice with another name takes none of the options of the one below."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            another = key != "data" and value.get("name") not in (None, old.get("name"))
            value = value if another else _over(old, value)
        merged[key] = value
    return merged


def _read(source: str) -> tuple[dict[str, Any], str]:
    path = Path(source)
    if source.endswith(".toml") or path.is_file():
        try:
            text = read_text(path)
        except (FileNotFoundError, NotADirectoryError):
            raise CounterpoiseError(f"There is no file {source}.") from None
        name = path.stem
    elif source in preset_names():
        text = resources.files("counterpoise.presets").joinpath(f"{source}.toml").read_text(encoding="utf-8")
        name = source
    else:
        raise unknown("preset", source, preset_names(), "(a file's name ends in .toml)")
    return parse_toml(text, source), name


def override(values: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Apply ``key=value`` settings to values; dots reach into tables.

    A choice that is replaced by a name alone loses its options.

    >>> override({"method": {"name": "fedprox", "mu": 1.0}}, ["method=fedavg", "local.epochs=3"])
    {'method': {'name': 'fedavg'}, 'local': {'epochs': 3}}
    """
    result = dict(values)
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not all(part.strip() for part in key.split(".")):
            raise CounterpoiseError(f"--set takes key=value, such as local.epochs=3, not {brief(setting)}.")
        result = assign(result, key, value(text.strip()))
    return result


def assign(values: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of the values with one setting changed."""
    result: dict[str, Any] = {k: dict(v) if isinstance(v, Mapping) else v for k, v in values.items()}
    path = [part.strip() for part in key.split(".")]
    table = result
    for part in path[:-1]:
        inner = table.get(part, {})
        table[part] = {"name": inner} if isinstance(inner, str) else dict(inner) if isinstance(inner, Mapping) else {}
        table = table[part]
    before = table.get(path[-1])
    named = isinstance(value, str) and isinstance(before, Mapping) and "name" in before
    if named and path == ["data"]:
        table[path[-1]] = {**before, "name": value}  # type: ignore[dict-item]
    else:
        table[path[-1]] = {"name": value} if named else value
    return result


def value(text: str) -> Any:
    """Parse a TOML value; text that is not one stays text.

    So does ``nan``: it is the name of an adversary, and no setting may be NaN.
    """
    try:
        found = parse_toml(f"value = {text}", f"The value {brief(text)}")["value"]
    except Malformed:
        return text
    return text if isinstance(found, float) and math.isnan(found) else found


def split(text: str) -> list[str]:
    """Split at commas that are outside brackets and quotes.

    >>> split("fedavg, fedprox(mu=0.1, lr=1), feddua:scaffold")
    ['fedavg', 'fedprox(mu=0.1, lr=1)', 'feddua:scaffold']
    """
    parts, depth, quote = [""], 0, ""
    for character in text:
        quote = "" if character == quote else quote or (character if character in "\"'" else "")
        depth += 0 if quote else (character in "([{") - (character in ")]}")
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]
