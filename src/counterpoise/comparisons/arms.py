"""Turn what a user typed into a plan: which methods, which settings, which seeds."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from counterpoise.choices import pair, parse_choice, parse_value, split
from counterpoise.comparisons.plan import Arm, Plan, slugs, worded
from counterpoise.errors import CounterpoiseError, brief
from counterpoise.methods import METHODS
from counterpoise.own import digests, own_part
from counterpoise.runs.build import check_choices
from counterpoise.runs.config import Config, override, parse, read
from counterpoise.runs.trust import check_named, own_names

__all__ = [
    "check_method",
    "combined",
    "compared",
    "completed",
    "first_seeds",
    "method_arms",
    "setting_arms",
    "shared_config",
    "short_keys",
    "swept",
    "with_code",
]


def compared(
    source: str,
    methods: Sequence[str],
    settings: Sequence[str] = (),
    seeds: int = 3,
    rounds: int | None = None,
    command: str = "",
    baseline: str = "",
) -> Plan:
    """Plan a comparison. Without `methods`, it compares those that the source names, or some that suit most questions.

    A setting ``method.x=...`` goes to every method that has the option x. `completed` says which methods take over
    options of the source's own method.
    """
    common = [setting for setting in settings if not re.match(r"\s*method\s*[.=]", setting)]
    config, values = shared_config(source, common, rounds, [*settings, *methods])
    choices = [_typed(text) for text in methods] or config.paper.methods or _usual(config.method)
    check_named([{**values, "method": choice} for choice in choices], source)
    own = _without_defaults(config.method)
    choices = [completed(own if choice == config.method else choice, own) for choice in choices]
    for setting in settings:
        if setting not in common:
            choices = _with_option(choices, setting)
    arms, against = method_arms([check_method(choice) for choice in choices], baseline)
    numbers = first_seeds(config, seeds)
    return with_code(Plan("compare", source, command, numbers, arms, against, values, chosen=bool(baseline)))


def _typed(text: str) -> dict[str, Any]:
    """A method as it was typed. If it cannot be read and has blanks outside brackets, several were meant."""
    try:
        return parse_choice(text)
    except CounterpoiseError:
        if len(re.sub(r"\(.*?\)", "", text).split()) < 2:
            raise
        raise CounterpoiseError(
            f"{brief(text)} is not one method. Separate methods by commas: --methods 'fedavg,fedprox(mu=0.1)'."
        ) from None


def _without_defaults(choice: Mapping[str, Any]) -> dict[str, Any]:
    """A method without options at their defaults. A file by ``presets NAME --toml`` has them all; no label should.

    >>> _without_defaults({"name": "counterpoise", "pace": 12.0, "power": 1.0})
    {'name': 'counterpoise', 'power': 1.0}
    """
    options = METHODS[choice["name"]].parameters
    return {key: value for key, value in choice.items() if key not in options or value != options[key].default}


def completed(choice: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A method completed with options of `own`, the source's method, if the same part of both names takes them.

    >>> completed({"name": "feddua:fedprox"}, {"name": "fedprox", "mu": 0.5})
    {'name': 'feddua:fedprox', 'mu': 0.5}
    >>> completed({"name": "feddua:fedavg"}, {"name": "fedprox", "lr": 0.5})
    {'name': 'feddua:fedavg'}
    """
    if choice["name"] == own["name"]:
        return {**own, **choice}
    mine, theirs = _takers(choice["name"]), _takers(own["name"])
    shared = {key: value for key, value in own.items() if key in theirs and theirs[key] == mine.get(key)}
    return {"name": choice["name"], **shared, **choice}


def _takers(name: str) -> dict[str, str]:
    """For each option of a method, the part of its name that takes it: feddua or fedprox in ``feddua:fedprox``."""
    options, (outer, _, inner) = METHODS[name].parameters, name.partition(":")
    if not inner or own_part(name) == name:
        return dict.fromkeys(options, name)
    return {**_takers(inner), **dict.fromkeys(METHODS[outer].parameters, outer)}


def _usual(own: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is compared by default: fedavg, one method each for momentum, drift and lies, ours, and the source's own."""
    usual = [{"name": name} for name in ("fedavg", "fedadam", "scaffold", "feddua", "counterpoise")]
    return usual if own["name"] in [choice["name"] for choice in usual] else [dict(own), *usual]


def method_arms(
    choices: Sequence[Mapping[str, Any]], baseline: str, labels: Sequence[str] = ()
) -> tuple[tuple[Arm, ...], str]:
    """The arms that compare these methods, and the label of the baseline: by default fedavg, otherwise the first.

    A label is the method's name with all of its options that were given, unless `labels` are given. The baseline may
    be given by a name alone that only one of them has.
    """
    names = [str(choice.get("called") or choice["name"]) for choice in choices]
    labels = labels or [_label(choice) for choice in choices]
    own = any("called" in choice for choice in choices)
    _no_twins(labels, "label them: cp.compare({'a': ..., 'b': ...}, ...)" if own else _OTHERWISE)
    if baseline and baseline not in labels:
        if names.count(baseline) != 1:
            raise CounterpoiseError(f"The baseline must be one of {', '.join(labels)}, not {baseline!r}.")
        baseline = labels[names.index(baseline)]
    fedavg = next((label for label, one in zip(labels, choices, strict=True) if one["name"] == "fedavg"), labels[0])
    arms = (
        Arm(label, slug, {"method": choice}) for label, slug, choice in zip(labels, slugs(labels), choices, strict=True)
    )
    return tuple(arms), baseline or fedavg


def _label(choice: Mapping[str, Any]) -> str:
    """A method in words with the options given; a user's own method by its name, unless one of ours has that name."""
    called = str(choice.get("called", ""))
    return called if called and called not in {entry.name for entry in METHODS} else worded(choice)


def swept(
    source: str,
    over: Sequence[str],
    points: Sequence[str],
    settings: Sequence[str],
    seeds: int,
    rounds: int | None,
    command: str,
) -> Plan:
    """Plan a sweep: every combination of the values in `over`, and the single `points`."""
    config, values = shared_config(source, settings, rounds, [*settings, *over, *points])
    single = [dict(pair(part, "--at") for part in split(point)) for point in points]
    chosen = combined([_axis(text) for text in over], single)
    if not chosen:
        raise CounterpoiseError(
            "Say what to sweep over: --over method.mu=0,0.01,0.1 or --at 'method.mu=0.1, local.epochs=2'."
        )
    plan = Plan("sweep", source, command, first_seeds(config, seeds), setting_arms(chosen), "", values)
    check_named([next(plan.pieces(arm)).values for arm in plan.arms], source)
    for arm in plan.arms:
        piece = next(plan.pieces(arm))
        check_method(parse(piece.values, f"{source} with {arm.label}").method)
    return with_code(plan)


def combined(
    axes: Sequence[tuple[str, Sequence[Any]]], points: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Every combination of the axes' values, and after them the single points.

    >>> combined([("a", [1, 2]), ("b", [3])], [{"a": 0}])
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}, {'a': 0}]
    """
    rows = itertools.product(*([(key, value) for value in values] for key, values in axes)) if axes else ()
    return [*map(dict, rows), *map(dict, points)]


def setting_arms(points: Sequence[Mapping[str, Any]]) -> tuple[Arm, ...]:
    """The arms of a sweep: settings with dotted keys, each labelled by its settings."""
    short = short_keys([key for one in points for key in one])
    labels = [", ".join(f"{short[key]}={worded(v)}" for key, v in one.items()) for one in points]
    _no_twins(labels)
    if any(key == "seed" for one in points for key in one):
        raise CounterpoiseError("The seed cannot be swept: every setting runs with each seed.")
    return tuple(Arm(label, slug, one) for label, slug, one in zip(labels, slugs(labels), points, strict=True))


def with_code(plan: Plan) -> Plan:
    """Check a plan's names and options, and add digests of the user's own code that its runs name."""
    pieces = [next(plan.pieces(arm)).values for arm in plan.arms]
    for values in pieces:
        check_choices(parse(values, plan.source))
    code = digests(own_names(pieces))
    return replace(plan, values={**plan.values, "code": code}) if code else plan


def shared_config(
    source: str, settings: Sequence[str], rounds: int | None, typed: Sequence[str] | None = None
) -> tuple[Config, dict[str, Any]]:
    """The configuration that all arms share, checked and complete except for the seed. `typed` as in `read`."""
    values = override(read(source, typed)[0], settings)
    values |= {} if rounds is None else {"rounds": rounds}
    config = parse(values, source)
    return config, {key: value for key, value in config.plain().items() if key != "seed"}


def first_seeds(config: Config, count: int) -> tuple[int, ...]:
    """This many seeds, beginning with the experiment's own."""
    return tuple(range(config.seed, config.seed + count))


def _axis(text: str) -> tuple[str, list[Any]]:
    key, equals, given = text.partition("=")
    values = [parse_value(part) for part in split(given)]
    if not equals or not key.strip() or not values:
        raise CounterpoiseError(f"--over takes key=value,value,..., such as method.mu=0,0.01,0.1, not {text!r}.")
    return key.strip(), values


def _with_option(choices: Sequence[dict[str, Any]], setting: str) -> list[dict[str, Any]]:
    key, given = pair(setting, "--set")
    name = key.removeprefix("method").strip(" .")
    if not name:
        raise CounterpoiseError("A comparison takes its methods from --methods, not from --set method=...")
    having = [name in METHODS[choice["name"]].parameters for choice in choices]
    if not any(having):
        raise CounterpoiseError(f"None of the compared methods has an option {name}: --set {setting}")
    return [{**choice, name: given} if has else choice for choice, has in zip(choices, having, strict=True)]


def check_method(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Check a method's name and options, and keep only the options that were given."""
    options = {key: given for key, given in choice.items() if key != "name"}
    whole = METHODS[choice["name"]].check(f"method {choice['name']}", options)
    return {"name": choice["name"]} | {key: whole[key] for key in options}


def short_keys(keys: Iterable[str], methods: Iterable[Any] = ()) -> dict[str, str]:
    """The last part of each key; the whole key if another one ends alike, or if it reads like an option of a method.

    >>> short_keys(["local.optimizer.lr", "local.epochs"], ["fedavg"])
    {'local.optimizer.lr': 'local.optimizer.lr', 'local.epochs': 'epochs'}
    """
    ends = {key: key.rpartition(".")[2] for key in keys}
    options = {name for method in methods for name in _options(method)}
    alike = [*ends.values()]
    return {
        key: key if alike.count(end) > 1 or (end in options and not key.startswith("method.")) else end
        for key, end in ends.items()
    }


def _options(method: Any) -> Collection[str]:
    """The options of a method, given as in a configuration; none if it is a user's own or there is no such method."""
    try:
        choice = parse_choice(method) if isinstance(method, str) else method
        return METHODS[choice["name"]].parameters
    except (CounterpoiseError, LookupError, TypeError):
        return ()


_OTHERWISE = "give one of the two other options"


def _no_twins(labels: Sequence[str], otherwise: str = _OTHERWISE) -> None:
    for label in labels:
        if labels.count(label) > 1:
            raise CounterpoiseError(f"{label} is named twice. Name it once, or {otherwise}.")
