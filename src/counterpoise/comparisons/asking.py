"""A comparison that is asked for in Python, with objects: as a plan, and beside it what the plan cannot hold.

The plan is the one that the command line would make of the same methods, data and settings. A user's own objects, such
as a module, cannot be written into it. `Asked` keeps them, and makes the set-up of each piece from both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from counterpoise.comparisons.arms import check_method, method_arms, parse_method
from counterpoise.comparisons.plan import Piece, Plan
from counterpoise.engine.rounds.setup import Setup
from counterpoise.errors import CounterpoiseError, brief, check_call
from counterpoise.federation import Federation
from counterpoise.method import Method
from counterpoise.methods import METHODS
from counterpoise.randomness import check_seed
from counterpoise.runs.build import asked_values, method_choice, setup
from counterpoise.runs.config import OWN, parse

__all__ = ["Asked", "Choice", "Data", "Seeds", "asked_comparison", "own_objects"]

Choice = str | Method | tuple[str, Mapping[str, Any]]
"""A method: its name, with options in brackets if need be; its name and a table of options; or the method itself."""
Data = Federation | Callable[[int], Federation]
"""One federation for all seeds, or a function that makes the federation of a seed."""
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
    """The user's own methods, by label."""

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
            "method": self.methods.get(piece.label),
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
    methods: Sequence[Choice] | Mapping[str, Choice], data: Data, seeds: Seeds, baseline: str, **settings: Any
) -> Asked:
    """Methods over the same seeds; `settings` are those of `counterpoise.simulate`."""
    chosen = _chosen(methods)
    labels = list(methods) if isinstance(methods, Mapping) else ()
    arms, against = method_arms([choice for choice, _ in chosen], baseline, labels)
    own = {arm.label: method for arm, (_, method) in zip(arms, chosen, strict=True) if method is not None}
    numbers, base, federations, values = _shared(data, seeds, settings)
    return Asked(Plan("compare", "Python", "cp.compare(...)", numbers, arms, against, values), base, federations, own)


def _shared(
    data: Data, seeds: Seeds, settings: Mapping[str, Any]
) -> tuple[tuple[int, ...], Setup, dict[int, Federation], dict[str, Any]]:
    """The seeds, what all pieces share, a federation for each seed, and the plan's settings."""
    numbers = _numbers(seeds)
    federations = _federations(data, numbers)
    base = Setup.of("fedavg", federations[numbers[0]], seed=numbers[0], **settings)
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
    """The table of data in which the run's seed deals the samples; if a federation is made otherwise, it is own."""
    same = [{key: value for key, value in table.items() if key != "seed"} for table in tables.values()]
    by_seed = all(table.get("seed") == seed for seed, table in tables.items())
    return same[0] if by_seed and all(one == same[0] for one in same) else {"name": OWN}


def _chosen(methods: object) -> list[tuple[dict[str, Any], Method | None]]:
    """For each method its choice, as a plan has it, and the method itself if it is the user's own."""
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


def _choice(given: object, label: str = "") -> tuple[dict[str, Any], Method | None]:
    match given:
        case str():
            return check_method(parse_method(given)), None
        case (str() as name, Mapping() as options):
            return check_method({**options, "name": name}), None
        case Method() if given.spec.name:
            usual = METHODS[given.spec.name].parameters
            options = {key: value for key, value in method_choice(given).items() if key != "name"}
            return {"name": given.spec.name} | {k: v for k, v in options.items() if v != usual[k].default}, None
        case Method():
            named = replace(given, name=label or given.name)  # the plan and the run's folder know it by this name
            return method_choice(named), named
    raise CounterpoiseError(
        "A method is a name such as 'fedprox(mu=0.1)', a pair such as ('fedprox', {'mu': 0.1}), or made by "
        f"cp.methods.fedprox(mu=0.1), not {brief(given)}."
    )
