"""The plan of a comparison or a sweep: several arms, each with settings of its own, all run with the same seeds.

``DIR/compare.toml`` holds the plan. Each piece, one arm with one seed, has an ordinary run's folder,
``DIR/<arm>/seed-<n>``. One seed gives the same partition, cohorts, batches and initial weights in every arm.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from counterpoise.comparisons.contents import COMPARISON
from counterpoise.comparisons.form import Planned
from counterpoise.errors import CounterpoiseError, changed
from counterpoise.registry import flatten
from counterpoise.runs.experiments import assign
from counterpoise.runs.files import replace_text
from counterpoise.runs.kept import checked
from counterpoise.texts import parse_toml, read_text

__all__ = ["PYTHON", "Arm", "Piece", "Plan", "read_plan", "slugs", "worded", "write_plan"]

SCHEMA = 1
PYTHON = "Python"
"""The source of a plan that was made by a call in Python."""
_KINDS = {"compare": "comparison", "sweep": "sweep"}
_ELSEWHERE = (
    "Choose another folder with --out (in Python with out=...), or replace what it holds with --overwrite "
    "(overwrite=True)."
)


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
    named: bool = field(default=False, compare=False)
    """Whether the user named the arms. Such names replace older ones if a folder's plan is extended."""
    chosen: bool = field(default=False, compare=False)
    """Whether the user chose the baseline. It, too, replaces an older one."""

    @property
    def arm_word(self) -> str:
        """What an arm is."""
        return "setting" if self.kind == "sweep" else "method"

    @property
    def title(self) -> str:
        """What the live table calls it: the preset or file, or what a call in Python makes."""
        return _KINDS[self.kind] if self.source == PYTHON else self.source

    def pieces(self, arm: Arm) -> Iterator[Piece]:
        """The runs of one arm."""
        for seed in self.seeds:
            values: Mapping[str, Any] = {**self.values, "seed": seed}
            for key, value in arm.settings.items():
                values = assign(values, key, value)
            yield Piece(arm.label, seed, f"{arm.slug}/seed-{seed}", values)

    def extended(self, other: Plan) -> Plan:
        """Add the arms and seeds of another plan, which must have the same settings.

        An arm that both have keeps its label, and the plan its baseline, unless the user named them in the other one.
        """
        if self.kind != other.kind:
            raise CounterpoiseError(
                f"The folder holds a {_KINDS[self.kind]}, and this is a {_KINDS[other.kind]}. {_ELSEWHERE}"
            )
        mine, theirs = flatten(self.values), flatten(other.values)
        differ = [
            f"{key.removeprefix('code.')} has changed"
            if key.startswith("code.")
            else changed(key, mine.get(key), theirs.get(key))
            for key in sorted(mine.keys() | theirs.keys(), key=lambda key: (not key.endswith(".name"), key))
            if mine.get(key) != theirs.get(key)
            and (not key.startswith("code.") or (key in mine and key in theirs))  # a file may be used by one plan only
        ]
        if differ:
            raise CounterpoiseError(
                f"The folder holds a {_KINDS[self.kind]} with other settings: {', '.join(differ)}. {_ELSEWHERE}"
            )
        first, second = (other, self) if other.named else (self, other)
        taken = {arm.label for arm in first.arms}
        arms: list[Arm] = []
        for arm in (*self.arms, *(arm for arm in other.arms if not self._label(arm.settings))):
            label = first._label(arm.settings) or _free((second._label(arm.settings), arm.whole), taken)
            taken.add(label)
            slug = arm.slug if arm in self.arms else slugs([*(mine.slug for mine in arms), label])[-1]
            arms.append(Arm(label, slug, arm.settings))
        against = other if other.chosen else self
        compared = [arm.settings for arm in against.arms if arm.label == against.baseline]  # none in a sweep
        baseline = next((arm.label for arm in arms if arm.settings in compared), "")
        seeds = tuple(sorted({*self.seeds, *other.seeds}))
        code = {**self.values.get("code", {}), **other.values.get("code", {})}
        values = {**self.values, "code": code} if code else self.values
        return replace(self, command=other.command, seeds=seeds, arms=tuple(arms), baseline=baseline, values=values)

    def narrowed(self, other: Plan) -> Plan:
        """Only the arms and seeds of another plan, in its order but with this plan's labels. This plan holds them all.

        The baseline is this plan's if it is among them, otherwise the other's.
        """
        found = [arm for wanted in other.arms for arm in self.arms if arm.settings == wanted.settings]
        theirs = next((arm.settings for arm in other.arms if arm.label == other.baseline), None)
        there = [arm.label for arm in found if arm.label == self.baseline or arm.settings == theirs]
        baseline = self.baseline if self.baseline in there else (there or [""])[0]
        return replace(self, seeds=other.seeds, arms=tuple(found), baseline=baseline)

    def _label(self, settings: Mapping[str, Any]) -> str:
        """The label of the arm with these settings; empty if there is none."""
        return next((arm.label for arm in self.arms if arm.settings == settings), "")


def _free(labels: Sequence[str], taken: Collection[str]) -> str:
    """The first of these labels that is not taken, or else the last one with a number."""
    numbered = (f"{labels[-1]} {number}" for number in itertools.count(2))
    return next(label for label in itertools.chain(labels, numbered) if label not in taken)


def worded(value: Any) -> str:
    """A setting's value as it can be typed: a choice with its options, or any other; a user's own by its name.

    >>> worded({"name": "fedprox", "mu": 0.1}), worded({"every": 2}), worded(0.1), worded(True)
    ('fedprox(mu=0.1)', '{every=2}', '0.1', 'true')
    """
    if not isinstance(value, Mapping):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if "called" in value:
        return f"{value['called']} (own)"
    options = ", ".join(f"{key}={worded(option)}" for key, option in value.items() if key != "name")
    if "name" not in value:
        return f"{{{options}}}"
    return f"{value['name']}({options})" if options else str(value["name"])


_LONGEST = 120
"""The most characters of a label that a folder is named after. File systems take 255, and a number may follow."""


def slugs(labels: Sequence[str]) -> list[str]:
    """A folder name for each label; no two are the same.

    >>> slugs(["feddua:fedavg", "fedprox(mu=0.1)", "lr=1e-20", "lr=1e+20", "lr=-1", "LR=-1"])
    ['feddua-fedavg', 'fedprox-mu=0.1', 'lr=1e-20', 'lr=1e+20', 'lr=-1', 'lr=-1_2']
    """
    found: list[str] = []
    for label in labels:
        words = re.sub(r"=?[^a-z0-9.=+-]+", "-", label.lower())
        plain = re.sub(r"--+", "-", words)[:_LONGEST].strip("-.=+") or "arm"
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
