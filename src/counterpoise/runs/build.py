"""Make the objects that a configuration names, and describe objects as a configuration."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, get_args

from torch import nn

from counterpoise.adversary import ADVERSARIES, Adversary
from counterpoise.augment import AUGMENTS
from counterpoise.engine.backends.settings import Engine
from counterpoise.engine.rounds.admission import Limits
from counterpoise.engine.rounds.adversaries import each_adversary
from counterpoise.engine.rounds.evaluation import Evaluation
from counterpoise.engine.rounds.setup import Setup, Training
from counterpoise.engine.rounds.trainer import Trainer
from counterpoise.engine.scores import LOSSES, METRICS, Loss, Metric, Metrics, named_metrics
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import AVAILABILITIES, PARTITIONS, SKEWS, Availability, Federation, Partition, load
from counterpoise.federation.datasets import check_known, stamp
from counterpoise.flat import pieces, raw_bytes
from counterpoise.local import OPTIMIZERS, SCHEDULES, Local, Schedule
from counterpoise.measures.stopping import When
from counterpoise.method import SLOTS, Method
from counterpoise.methods import METHODS
from counterpoise.models import MODELS
from counterpoise.models.batch_norm import norm_of
from counterpoise.models.building import Model
from counterpoise.models.copies import layer_settings
from counterpoise.models.digests import form_digest, frozen_digest
from counterpoise.own import digests, own_part
from counterpoise.registry import Registry, Spec, flatten
from counterpoise.runs.config import OWN, Config, DataConfig, LocalConfig, parse
from counterpoise.runs.objects import object_digests
from counterpoise.runs.own_data import OWN_DATA, has_named_partition, own_federation
from counterpoise.runs.places import CHOICES
from counterpoise.runs.trust import own_names

__all__ = [
    "asked_values",
    "check_choices",
    "describe",
    "differences",
    "make",
    "method_choice",
    "setup",
    "whole",
]

# ---------------------------------------------------------------- configuration to objects


_INNER: dict[type, Registry[Any]] = {Availability: AVAILABILITIES, Partition: PARTITIONS, Schedule: SCHEDULES}
"""Types of options that are choices themselves, such as the two recipes of a mixed partition."""


def _options(registry: Registry[Any], choice: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a choice, checked and with defaults filled in."""
    name = choice["name"]
    entry, options = registry[name], {k: v for k, v in choice.items() if k != "name"}
    for key, value in options.items():
        if isinstance(value, Mapping) and "name" in value and key in entry.parameters:
            kind = entry.parameters[key].type
            inner = next((r for made, r in _INNER.items() if made in (kind, *get_args(kind))), None)
            options[key] = value if inner is None else make(inner, value)
    return entry.check(f"{registry.kind} {name}", options)


def _listed(given: Any) -> Any:
    """One value, or a list with one per client."""
    return list(given) if isinstance(given, Sequence) else given


def make(registry: Registry[Any], choice: Mapping[str, Any]) -> Any:
    """Make what a choice names, such as a method with its options."""
    return registry.make(choice["name"], **_options(registry, choice))


def check_choices(config: Config) -> None:
    """Refuse names and options that do not exist, before any run begins. This imports code of the user's own."""
    for place, registry in {**CHOICES, "metrics": METRICS}.items():
        found = functools.reduce(getattr, place.split("."), config)
        for choice in found if isinstance(found, list) else [found]:
            if isinstance(choice, Mapping) and choice["name"] != OWN:
                _options(registry, choice)
    if own_part(config.data.name):
        _options(OWN_DATA, {**(config.data.options or {}), "name": config.data.name})
    elif config.data.name != OWN:
        check_known(config.data.name)


def setup(config: Config, **own: Any) -> Setup:
    """Make the run that a configuration describes. The user's own objects come as arguments."""
    given = {name: value for name, value in own.items() if value is not None}
    for name in config.asked_for:
        if name not in given:
            raise _give(name)
    training = Training(
        method=given.get("method") or make(METHODS, config.method),
        model=given.get("model")
        or functools.partial(MODELS[config.model["name"]].factory, **_options(MODELS, config.model)),
        local=_local(config.local, given),
        loss=given.get("loss") or (make(LOSSES, config.loss) if config.loss else None),
        metrics=given.get("metrics") or _metrics(config),
        engine=Engine(**dict(config.engine)),
    )
    return Setup(
        training,
        federation=_federation(config, given),
        rounds=config.rounds,
        cohort=given.get("cohort") or _cohort(config),
        seed=config.seed,
        evaluation=Evaluation(**dict(config.evaluation)),
        limits=Limits(**dict(config.limits)),
        stop=None if config.stop is None else When(**dict(config.stop)),
        adversary=given.get("adversary") or [make(ADVERSARIES, choice) for choice in config.adversary],
    )


def _federation(config: Config, given: Mapping[str, Any]) -> Federation:
    data = config.data
    if "federation" in given:
        federation: Federation = given["federation"]
    else:
        seed = config.seed if data.seed is None else data.seed
        federation = _dealt(json.dumps(data.model_dump(exclude={"seed", "fingerprint"})), seed, stamp(data.name))
    if data.fingerprint is not None and data.fingerprint != federation.fingerprint:
        raise CounterpoiseError(
            "The federation given is not the one this run was made with: their fingerprints differ."
        )
    return federation


@functools.lru_cache(maxsize=1)
def _dealt(settings: str, seed: int, stamp: object) -> Federation:
    """Make the federation. The last one stays in memory, so that methods compared with the same seed share it."""
    data = DataConfig(**json.loads(settings))
    if own_part(data.name):
        asked = data.model_dump(exclude={"name", "seed", "options", "fingerprint"}, exclude_defaults=True)
        makes: dict[str, Registry[Any]] = {"partition": PARTITIONS, "features": SKEWS}
        made = {key: make(makes[key], value) if key in makes else value for key, value in asked.items()}
        options = _options(OWN_DATA, {**(data.options or {}), "name": data.name})
        return own_federation(data.name, options, made, seed)
    if data.options:
        raise CounterpoiseError(f"The setting data.options is for data of your own; {data.name} takes none.")
    if data.partition is None:
        raise CounterpoiseError("The setting data.partition is missing: say how samples are divided among clients.")
    return load(
        data.name,
        partition=make(PARTITIONS, data.partition),
        test=data.test,
        heldout=data.heldout,
        probe=data.probe,
        proxy=data.proxy,
        seed=seed,
        scaling=data.scaling,
        features=None if data.features is None else make(SKEWS, data.features),
        pool=data.pool,
        skewed_test=data.skewed_test,
        samples=data.samples,
        columns=data.columns,
        resize=data.resize,
    )


def _local(local: LocalConfig, given: Mapping[str, Any]) -> Local:
    return Local(
        local.epochs,
        local.batch,
        given.get("optimizer") or make(OPTIMIZERS, local.optimizer),
        given.get("schedule") or make(SCHEDULES, local.schedule),
        local.steps,
        given.get("augment") or (make(AUGMENTS, local.augment) if local.augment else None),
        local.memory,
        local.clip,
    )


def _metrics(config: Config) -> dict[str, Metric] | None:
    return None if config.metrics is None else named_metrics(config.metrics)


def _cohort(config: Config) -> int | float | Availability | None:
    if isinstance(config.cohort, Mapping):
        return make(AVAILABILITIES, config.cohort)  # type: ignore[no-any-return]
    return config.cohort


def _give(name: str) -> CounterpoiseError:
    return CounterpoiseError(
        f"This run was made with {'an' if name[0] in 'aeiou' else 'a'} {name} of your own. "
        f"Give it again: cp.resume(folder, {name}=...)."
    )


# ---------------------------------------------------------------- objects to configuration


_BEFORE: dict[str, dict[str, Any]] = {"rfa": {"weights": "data"}}
"""What a method did before it had an option, if that differs from the option's default."""


def whole(kept: Config) -> Config:
    """A kept configuration, completed with options that its choices gained after the run was made.

    The folder keeps its configuration unchanged, because the checkpoint belongs to that one.
    """
    was = _BEFORE.get(str(kept.method["name"]).rpartition(":")[2], {})
    local = {
        name: _completed(registry, chosen)
        for name, registry in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("augment", AUGMENTS))
        if name not in kept.own and (chosen := getattr(kept.local, name)) is not None
    }
    changes = {
        "method": _completed(METHODS, {**was, **kept.method}),
        "model": _completed(MODELS, kept.model),
        "local": kept.local.model_copy(update=local),
    }
    return kept.model_copy(update=changes)


def _completed(registry: Registry[Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """A choice completed with the defaults of its options; an object or code of the user's own stays as it is."""
    if chosen["name"] == OWN or own_part(chosen["name"]):
        return dict(chosen)
    return {k: v for k, v in _options(registry, chosen).items() if v is not None} | dict(chosen)


def differences(kept: Config, made: Config) -> list[tuple[str, Any, Any]]:
    """The settings that differ between a kept run and one just made, each with both values.

    The engine's come last, because many of them follow from the rest. `changed_objects` compares the user's own objects.
    """
    before, now = (flatten({**whole(one).plain(), "objects": {}}) for one in (kept, made))
    keys = sorted(before.keys() | now.keys(), key=lambda key: (key.startswith("engine."), key))
    late = {"frozen", "model.form"} - before.keys()  # runs of older versions do not hold them
    return [(key, before.get(key), now.get(key)) for key in keys if before.get(key) != now.get(key) and key not in late]


def describe(made: Setup, trainer: Trainer) -> Config:
    """The complete configuration of a run, with the settings that its trainer resolved."""
    values = asked_values(made)
    values["data"]["fingerprint"] = made.federation.fingerprint
    if values["model"]["name"] == OWN:
        values["model"] |= _fingerprinted(trainer.module)
    values["frozen"] = frozen_digest(trainer.module, drawn=False) or None
    values["engine"], values["evaluation"] = asdict(trainer.engine), asdict(trainer.evaluator.setting)
    config = parse({**values, "code": digests(own_names(values))}, "the run")
    return config.model_copy(update={"objects": object_digests(made, config.asked_for)})


def asked_values(made: Setup) -> dict[str, Any]:
    """The configuration of a run as it was asked for: open choices stay open, and no object is fingerprinted."""
    training = made.training
    loss = _describe_loss(training.loss)
    own = {} if training.loss is None or loss else {"loss": _called(training.loss)}
    metrics = None if training.metrics is None else _describe_metrics(training.metrics)
    if training.metrics is not None and metrics is None:
        own["metrics"] = _called(training.metrics)
    adversaries = each_adversary(made.adversary)
    named = [one.spec.plain() for one in adversaries if isinstance(one, Adversary) and one.spec.name]
    if len(named) < len(adversaries):
        own["adversary"], named = ", ".join(map(_called, adversaries)), []
    cohort: Any = made.cohort
    if isinstance(cohort, Availability) and cohort.spec.name:
        cohort = cohort.spec.plain()
    elif callable(cohort) or isinstance(cohort, Availability):
        own["cohort"], cohort = getattr(cohort, "__qualname__", "cohort"), None
    source = made.federation.source
    local, own_local = _describe_local(training.local)
    return {
        "rounds": made.rounds,
        "cohort": cohort,
        "seed": made.seed,
        "data": dict(source) if source and has_named_partition(source) else {"name": OWN},
        "model": _model_choice(training.model),
        "method": method_choice(training.method),
        "loss": loss,
        "metrics": metrics,
        "local": local,
        "adversary": named,
        "engine": asdict(training.engine),
        "evaluation": asdict(made.evaluation),
        "limits": asdict(made.limits),
        "stop": None if made.stop is None else asdict(made.stop),
        "own": own | own_local,
    }


def method_choice(method: Method) -> dict[str, Any]:
    """A method's name and all of its options; for a method of the user's own, its name and the parts in each slot."""
    if method.spec.name:
        return method.spec.plain()
    parts = "; ".join(f"{slot}: {', '.join(p.name for p in getattr(method, slot))}" for slot in SLOTS)
    return {"name": OWN, "called": method.name, "parts": parts}


def _describe_local(local: Local) -> tuple[dict[str, Any], dict[str, str]]:
    """The table of local settings, and the names of those that are the user's own objects."""
    table: dict[str, Any] = {
        "epochs": local.epochs,
        "batch": local.batch,
        "steps": _listed(local.steps),
        "memory": _listed(local.memory),
        "clip": local.clip,
    }
    own: dict[str, str] = {}
    if local.optimizer.spec.options.get("lr") == local.optimizer.lr:
        table["optimizer"] = local.optimizer.spec.plain()
    else:
        own["optimizer"] = "Optimizer"
    if local.schedule.spec.name:
        table["schedule"] = local.schedule.spec.plain()
    else:
        own["schedule"] = "Schedule"
    if (spec := getattr(local.augment, "spec", None)) is not None:
        table["augment"] = spec.plain()
    elif local.augment is not None:
        own["augment"] = getattr(local.augment, "__qualname__", "augment")
    return table, own


def _describe_loss(loss: Loss | None) -> dict[str, Any] | None:
    """The choice that makes this loss again; None if it is the default, or a user's own function."""
    spec: Spec | None = getattr(loss, "spec", None)
    return None if spec is None else spec.plain()


def _describe_metrics(given: Metrics) -> list[dict[str, Any]] | None:
    """The choices that make these metrics again; None if one of them is a user's own."""
    made = named_metrics(given)
    specs = {name: getattr(metric, "spec", None) for name, metric in made.items()}
    if any(spec is None or spec.name.rpartition(":")[2] != name for name, spec in specs.items()):
        return None
    return [spec.plain() for spec in specs.values() if spec is not None]


def _called(value: object) -> str:
    """The name of a user's own object."""
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _model_choice(model: Model) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if isinstance(model, functools.partial):
        options, model = dict(model.keywords), model.func
    entry = MODELS[model] if isinstance(model, str) else MODELS.entry_of(model)
    if entry is not None:
        return {"name": entry.name, **_options(MODELS, {"name": entry.name, **options})}
    return {"name": OWN}


def _fingerprinted(module: nn.Module) -> dict[str, Any]:
    """What is kept of a user's own model: its class, its choice of norms, and a digest of its layers and tensors."""
    digest = hashlib.sha256(repr(layer_settings(module)).encode())
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        for piece in pieces(tensor):
            digest.update(raw_bytes(piece))
    chosen = norm_of(module)
    norm = {} if chosen is None else {"norm": chosen}
    named = {"class": type(module).__qualname__, "form": form_digest(module)}
    return {**named, **norm, "fingerprint": digest.hexdigest()[:16]}
