"""A comparison or sweep that is asked for in Python: its plan, and the objects that a plan cannot hold.

The plan is the one that the command line would make of the same methods, data and settings. A user's own objects, such
as a module, cannot be written into it. `Asked` keeps them, and makes the set-up of each piece from both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

from counterpoise.adopting import adopted
from counterpoise.choices import parse_choice
from counterpoise.comparisons.arms import check_method, combined, method_arms, setting_arms
from counterpoise.comparisons.plan import PYTHON, Arm, Piece, Plan, worded
from counterpoise.engine.rounds.setup import Choice, Setup
from counterpoise.engine.scores import named_metrics
from counterpoise.errors import CounterpoiseError, brief, check_call
from counterpoise.federation import Federation
from counterpoise.measures.naming import check_planned
from counterpoise.method import Method
from counterpoise.methods import METHODS
from counterpoise.randomness import check_seed
from counterpoise.registry import Entry
from counterpoise.runs.build import asked_values, method_choice, setup
from counterpoise.runs.config import OWN, parse

__all__ = ["Asked", "Compared", "Data", "Seeds", "asked_comparison", "asked_sweep", "own_objects"]

Data = Federation | Callable[[int], Federation]
"""One federation for all seeds, or a function that makes the federation of a seed."""
Maker = Callable[..., Method]
"""A function that makes a method of its options."""
Compared = Choice | Maker | tuple[Maker, Mapping[str, Any]]
"""A method: as in `counterpoise.simulate`, or a function that makes one, with or without a table of options."""
Seeds = int | Sequence[int]
"""How many seeds, beginning with 0, or the seeds themselves."""


@dataclass(frozen=True)
class Asked:
    """What a user asked for: a plan, and the objects that it is about."""

    plan: Plan
    base: Setup
    """What all pieces share, with the first seed's federation and any method."""
    federations: Mapping[int, Federation]
    """By seed."""
    methods: Mapping[str, Method]
    """The user's own methods, by what they are called. Their labels may change in a folder with other runs."""

    def setup(self, piece: Piece) -> Setup:
        """The run that a piece stands for."""
        config = parse(piece.values, piece.label)
        given = {name: value for name, value in self._own(piece).items() if name in config.asked_for}
        if piece.values["data"] == self.plan.values["data"]:
            given["federation"] = self.federations[piece.seed]
        return setup(config, **given)

    @property
    def own(self) -> list[str]:
        """The user's own objects, by the names of their arguments: what the command line cannot make again."""
        return own_objects(next(self.plan.pieces(arm)) for arm in self.plan.arms)

    def _own(self, piece: Piece) -> dict[str, Any]:
        """Objects by the names that `Config.asked_for` has for them."""
        training, local = self.base.training, self.base.training.local
        return {
            "method": self.methods.get(piece.values["method"].get("called")),
            "model": training.model,
            "loss": training.loss,
            "metrics": training.metrics,
            "cohort": self.base.cohort,
            "optimizer": local.optimizer,
            "schedule": local.schedule,
            "augment": local.augment,
            "adversary": self.base.adversary,
        }


def own_objects(pieces: Iterable[Piece]) -> list[str]:
    """The objects that only Python can give to these pieces, by the names of their arguments."""
    return list(dict.fromkeys(name for piece in pieces for name in parse(piece.values, piece.label).asked_for))


def asked_comparison(
    methods: Sequence[Compared] | Mapping[str, Compared], data: Data, seeds: Seeds, baseline: str, **settings: Any
) -> Asked:
    """Methods over the same seeds; `settings` are those of `counterpoise.simulate`."""
    chosen = _chosen(methods)
    labels = list(methods) if isinstance(methods, Mapping) else ()
    arms, against = method_arms([choice for choice, _ in chosen], baseline, labels)
    numbers, base, federations, values = _shared(data, seeds, settings)
    plan = Plan("compare", PYTHON, "cp.compare(...)", numbers, arms, against, values, bool(labels), bool(baseline))
    own = {method.name: method for _, method in chosen if method is not None}
    return Asked(plan, base, federations, own)


def asked_sweep(
    method: Compared,
    data: Data,
    over: Mapping[str, Sequence[Any]],
    at: Sequence[Mapping[str, Any]],
    seeds: Seeds,
    **settings: Any,
) -> Asked:
    """Every combination of the values in `over`, and the single points `at`, each over the same seeds."""
    method, points = _by_name(method), _points(over, at)
    arms, keys = setting_arms(points), dict.fromkeys(key for point in points for key in point)
    match method:
        case (FunctionType() as maker, Mapping() as options):
            arms, own = _made_arms(maker, options, arms)
            choice = arms[0].settings["method"]
            keys = {key: None for key in keys if not key.startswith("method.")}
        case _:
            choice, one = _choice(method)
            own = {} if one is None else {one.name: one}
    numbers, base, federations, values = _shared(data, seeds, settings)
    plan = Plan("sweep", PYTHON, "cp.sweep(...)", numbers, arms, "", {**values, "method": choice})
    whole = parse({**plan.values, "seed": numbers[0]}, "the sweep")
    for key in keys:
        _check_named(key, whole.asked_for)
    for arm in plan.arms:
        config = parse(next(plan.pieces(arm)).values, arm.label)
        if not own:
            check_method(config.method)
    return Asked(plan, base, federations, own)


def _made_arms(
    maker: Maker, options: Mapping[str, Any], arms: Sequence[Arm]
) -> tuple[tuple[Arm, ...], dict[str, Method]]:
    """Arms whose settings are the methods that the user's function makes of the swept options; and these, by name."""
    found: list[Arm] = []
    own: dict[str, Method] = {}
    for arm in arms:
        swept = {key.removeprefix("method."): v for key, v in arm.settings.items() if key.startswith("method.")}
        rest = {key: v for key, v in arm.settings.items() if not key.startswith("method.")}
        choice, made = _choice((maker, {**options, **swept}))
        found.append(replace(arm, settings={**rest, "method": choice}))
        own |= {} if made is None else {made.name: made}
    return tuple(found), own


def _points(over: object, at: object) -> list[dict[str, Any]]:
    if not isinstance(over, Mapping) or not all(
        isinstance(key, str) and isinstance(values, Iterable) and not isinstance(values, str | Mapping)
        for key, values in over.items()
    ):
        raise CounterpoiseError(
            f"over takes a list of values for each setting, such as {{'method.mu': [0, 0.01, 0.1]}}, not {brief(over)}."
        )
    if isinstance(at, Mapping | str) or not isinstance(at, Sequence) or not all(isinstance(one, Mapping) for one in at):
        raise CounterpoiseError(f"at takes a list of points, such as [{{'method.mu': 0.1}}], not {brief(at)}.")
    axes = [(key, [_plain(value) for value in values]) for key, values in over.items()]
    found = combined(axes, [{str(key): _plain(value) for key, value in point.items()} for point in at])
    if not found or not all(found):
        raise CounterpoiseError(
            "Say what to sweep over: over={'method.mu': [0, 0.01, 0.1]} or at=[{'method.mu': 0.1, 'local.epochs': 2}]."
        )
    return found


def _plain(value: Any) -> Any:
    """A number of NumPy or torch as Python's."""
    return value.item() if hasattr(value, "item") else value


_SETTING = {"federation": "data"} | {name: f"local.{name}" for name in ("optimizer", "schedule", "augment")}
"""The settings of objects whose arguments have other names."""


def _check_named(key: str, own: Sequence[str]) -> None:
    """Refuse to sweep over a setting of a user's own object: it is given whole, and has no options by name."""
    for name in own:
        setting = _SETTING.get(name, name)
        if key == setting or key.startswith(f"{setting}."):
            more = " Give the function that makes it: cp.sweep(function, ...)." if name == "method" else ""
            raise CounterpoiseError(f"{key} cannot be swept, because the {name} is your own.{more}")


def _shared(
    data: Data, seeds: Seeds, settings: Mapping[str, Any]
) -> tuple[tuple[int, ...], Setup, dict[int, Federation], dict[str, Any]]:
    """The seeds, what all pieces share, a federation for each seed, and the plan's settings."""
    numbers = _numbers(seeds)
    federations = _federations(data, numbers)
    base = Setup.of("fedavg", federations[numbers[0]], seed=numbers[0], **settings)
    if base.stop is not None:
        metrics = base.training.metrics
        check_planned(base.stop.metric, named_metrics(metrics) if metrics else ["accuracy"], "to stop by")
    values = asked_values(base)
    if not isinstance(data, Federation):
        tables = {seed: asked_values(replace(base, federation=one))["data"] for seed, one in federations.items()}
        values["data"] = _dealt_by_seed(tables)
    config = parse(values, "the comparison").plain()
    return numbers, base, federations, {key: value for key, value in config.items() if key not in ("seed", "method")}


def _numbers(seeds: object) -> tuple[int, ...]:
    if type(seeds) is int and 1 <= seeds <= _MOST:
        return tuple(range(seeds))
    if isinstance(seeds, Sequence) and not isinstance(seeds, str | bytes) and seeds:
        for seed in seeds:
            check_seed(seed)
        if len({*seeds}) == len(seeds):
            return tuple(seeds)
    raise CounterpoiseError(
        f"seeds must be a number of seeds from 1 to {_MOST}, or a list of different ones such as [0, 1, 2], "
        f"not {brief(seeds)}."
    )


_MOST = 10_000


def _federations(data: object, seeds: Sequence[int]) -> dict[int, Federation]:
    if isinstance(data, Federation):
        return dict.fromkeys(seeds, data)
    if not callable(data):
        raise CounterpoiseError(
            "federation must be made by cp.load(...), or be a function that makes the one of a seed, such as "
            f"lambda seed: cp.load(..., seed=seed), not {brief(data)}."
        )
    check_call(data, "federation(seed)", "compare")
    found = {seed: data(seed) for seed in seeds}
    for seed, one in found.items():
        if not isinstance(one, Federation):
            raise CounterpoiseError(f"federation({seed}) must return a Federation, not {brief(one)}.")
    return found


def _dealt_by_seed(tables: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """The data settings that all seeds share, if each run's seed deals the samples; otherwise data of the user's own."""
    same = [{key: value for key, value in table.items() if key != "seed"} for table in tables.values()]
    by_seed = all(table.get("seed") == seed for seed, table in tables.items())
    return same[0] if by_seed and all(one == same[0] for one in same) else {"name": OWN}


def _chosen(methods: object) -> list[tuple[dict[str, Any], Method | None]]:
    """For each method, the choice that a plan holds, and the method itself if it is the user's own."""
    if isinstance(methods, Mapping) and methods:
        for label in methods:
            if not isinstance(label, str) or not label or not label.isprintable():
                raise CounterpoiseError(f"A method is named by a line of text, not {brief(label)}.")
        return [_choice(one, label) for label, one in methods.items()]
    if isinstance(methods, Sequence) and not isinstance(methods, str) and methods:
        return [_choice(one) for one in methods]
    raise CounterpoiseError(
        "methods must be a list such as ['fedavg', 'fedprox(mu=0.1)'], or a dictionary that names them, such as "
        f"{{'mine': method}}, not {brief(methods)}."
    )


def _by_name(given: Any) -> Any:
    """A function that makes methods becomes a pair: its name if it is ours, otherwise itself; and its options."""
    maker, options = given if isinstance(given, tuple) and len(given) == 2 else (given, {})
    if not isinstance(maker, FunctionType):
        return given
    entry = METHODS.entry_of(maker)
    return (maker if entry is None else entry.name), options


def _made(maker: Maker, options: Mapping[str, Any], label: str) -> Method:
    """The method that a user's own function makes, named after the function and the options given."""
    owner = f"method {maker.__name__}"
    factory, parameters = adopted(maker, owner, None, Method, "", ())
    made: Method = factory(**Entry(maker.__name__, "", factory, parameters).check(owner, options))
    name = maker.__name__ if made.spec.name else made.name  # if it returns one of ours, the function names it
    return replace(made, name=label or worded({"name": name, **options}))


def _choice(given: object, label: str = "") -> tuple[dict[str, Any], Method | None]:
    match _by_name(given):
        case str() as text:
            return check_method(parse_choice(text)), None
        case (str() as name, Mapping() as options):
            return check_method({**options, "name": name}), None
        case (FunctionType() as maker, Mapping() as options):
            own = _made(maker, options, label)
            return method_choice(own), own
        case Method() as method if method.spec.name:
            usual = METHODS[method.spec.name].parameters
            options = {key: value for key, value in method_choice(method).items() if key != "name"}
            return {"name": method.spec.name} | {k: v for k, v in options.items() if v != usual[k].default}, None
        case Method() as method:
            named = replace(method, name=label or method.name)  # the plan and the run's folder know it by this name
            return method_choice(named), named
    raise CounterpoiseError(
        "A method is a name such as 'fedprox(mu=0.1)', a pair such as ('fedprox', {'mu': 0.1}), or made by "
        f"cp.methods.fedprox(mu=0.1), not {brief(given)}."
    )
