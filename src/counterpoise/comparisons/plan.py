"""The plan of a comparison or a sweep: several arms, each with settings of its own, all run with the same seeds.

``DIR/compare.toml`` holds the plan. Each piece, one arm with one seed, has an ordinary run's folder,
``DIR/<arm>/seed-<n>``. One seed gives the same partition, cohorts, batches and initial weights in every arm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from counterpoise.comparisons.contents import COMPARISON
from counterpoise.comparisons.form import Planned
from counterpoise.errors import CounterpoiseError
from counterpoise.registry import flatten
from counterpoise.runs.experiments import assign
from counterpoise.runs.files import replace_text
from counterpoise.runs.kept import checked
from counterpoise.texts import parse_toml, read_text

__all__ = ["Arm", "Piece", "Plan", "read_plan", "slugs", "worded", "write_plan"]

SCHEMA = 1


@dataclass(frozen=True)
class Arm:
    """One of the methods or settings compared."""

    label: str
    slug: str
    """The name of its folder."""
    settings: Mapping[str, Any]
    """The settings it changes, with dotted keys for tables: ``{"method": {"name": "fedprox", "mu": 0.1}}``."""

    @property
    def whole(self) -> str:
        """A label that names all of its settings."""
        return ", ".join(("" if key == "method" else f"{key}=") + worded(value) for key, value in self.settings.items())


@dataclass(frozen=True)
class Piece:
    """One run of a plan."""

    label: str
    seed: int
    place: str
    """Its folder, relative to the plan's."""
    values: Mapping[str, Any]
    """Its complete configuration."""


@dataclass(frozen=True)
class Plan:
    """A comparison or a sweep."""

    kind: str
    """compare or sweep"""
    source: str
    """The preset or file it was made from."""
    command: str
    """The command that repeats it."""
    seeds: tuple[int, ...]
    arms: tuple[Arm, ...]
    baseline: str
    """The label of the arm that the others are compared with; empty for a sweep, which looks for the best."""
    values: Mapping[str, Any]
    """The configuration that all arms share."""

    @property
    def arm_word(self) -> str:
        """What an arm is."""
        return "setting" if self.kind == "sweep" else "method"

    def pieces(self, arm: Arm) -> Iterator[Piece]:
        """The runs of one arm."""
        for seed in self.seeds:
            values: Mapping[str, Any] = {**self.values, "seed": seed}
            for key, value in arm.settings.items():
                values = assign(values, key, value)
            yield Piece(arm.label, seed, f"{arm.slug}/seed-{seed}", values)

    def extended(self, other: Plan) -> Plan:
        """Add the arms and seeds of another plan, which must have the same settings."""
        mine, theirs = flatten(self.values), flatten(other.values)
        for key in sorted(mine.keys() | theirs.keys()):
            added = key.startswith("code.") and not (key in mine and key in theirs)  # a file of an arm's own
            if mine.get(key) != theirs.get(key) and not added:
                raise CounterpoiseError(
                    f"The folder holds a {'comparison' if self.kind == 'compare' else self.kind} with other settings: "
                    f"{key} was {mine.get(key)!r} and is {theirs.get(key)!r}. Choose another folder with --out."
                )
        arms = list(self.arms)
        for arm in other.arms:
            if all(arm.settings != mine.settings for mine in arms):
                label = arm.label if all(arm.label != mine.label for mine in arms) else arm.whole
                arms.append(Arm(label, slugs([*(mine.slug for mine in arms), label])[-1], arm.settings))
        seeds = tuple(sorted({*self.seeds, *other.seeds}))
        code = {**self.values.get("code", {}), **other.values.get("code", {})}
        values = {**self.values, "code": code} if code else self.values
        return replace(self, command=other.command, seeds=seeds, arms=tuple(arms), values=values)


def worded(value: Any) -> str:
    """A setting's value as text: a choice with the options it was given, a table without a name, or a plain value.

    >>> worded({"name": "fedprox", "mu": 0.1}), worded({"every": 2}), worded(0.1)
    ('fedprox(mu=0.1)', '{every=2}', '0.1')
    """
    if not isinstance(value, Mapping):
        return str(value)
    options = ", ".join(f"{key}={option}" for key, option in value.items() if key != "name")
    if "name" not in value:
        return f"{{{options}}}"
    return f"{value['name']}({options})" if options else str(value["name"])


def slugs(labels: Sequence[str]) -> list[str]:
    """A folder name for each label; no two are the same.

    >>> slugs(["feddua:fedavg", "fedprox(mu=0.1)", "fedprox(mu=0,1)"])
    ['feddua-fedavg', 'fedprox-mu-0.1', 'fedprox-mu-0-1']
    """
    found: list[str] = []
    for label in labels:
        plain = re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") or "arm"
        taken = sum(re.fullmatch(re.escape(plain) + r"(_\d+)?", slug) is not None for slug in found)
        found.append(f"{plain}_{taken + 1}" if taken else plain)
    return found


def write_plan(folder: Path, plan: Plan) -> None:
    """Write a plan into its folder."""
    values = {
        "schema": SCHEMA,
        "kind": plan.kind,
        "source": plan.source,
        "command": plan.command,
        "seeds": list(plan.seeds),
        "baseline": plan.baseline,
        "arms": [{"label": arm.label, "slug": arm.slug, "settings": dict(arm.settings)} for arm in plan.arms],
        "config": dict(plan.values),
    }
    replace_text(folder / COMPARISON, tomli_w.dumps(values))


def read_plan(folder: Path) -> Plan:
    """Read a folder's plan and check all of it: anybody may have written it, and folders are made from it."""
    path = folder / COMPARISON
    try:
        values = parse_toml(read_text(path), str(path))
    except (FileNotFoundError, NotADirectoryError):
        raise CounterpoiseError(f"{folder} holds no comparison: there is no {COMPARISON} in it.") from None
    schema = values.get("schema")
    if type(schema) is int and schema > SCHEMA:
        raise CounterpoiseError(f"{path} was written by a newer version of counterpoise. Upgrade counterpoise.")
    found = checked(
        Planned, values, str(path), "Correct it there, or start a new comparison in another folder with --out."
    )
    plan = Plan(
        found.kind,
        found.source,
        found.command,
        tuple(found.seeds),
        tuple(Arm(arm.label, arm.slug, arm.settings) for arm in found.arms),
        found.baseline,
        found.config,
    )
    for arm in plan.arms:
        for piece in plan.pieces(arm):
            _check_piece(piece, f"{path}, {arm.label}")
    return plan


def _check_piece(piece: Piece, where: str) -> None:
    from counterpoise.runs.config import parse  # it loads torch, and runs are listed without

    if parse(piece.values, where).seed != piece.seed:
        raise CounterpoiseError(f"{where}: an arm cannot set the seed.")
    try:
        json.dumps(piece.values)  # which is how a worker gets them
    except TypeError:
        raise CounterpoiseError(f"{where}: a setting cannot be a date or a time.") from None
