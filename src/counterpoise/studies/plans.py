"""A cell of a study as the plan of an ordinary comparison."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from counterpoise.choices import parse_choice
from counterpoise.comparisons.arms import check_method, completed, first_seeds, shared_config, with_code
from counterpoise.comparisons.plan import Arm, Piece, Plan, slugs
from counterpoise.errors import CounterpoiseError
from counterpoise.registry import flatten
from counterpoise.runs.config import parse
from counterpoise.studies.checking import check_cell
from counterpoise.studies.study import Cell

__all__ = ["arm_of", "differing", "placed", "plan_of"]

_FREE = re.compile(r"schema|seed|engine\.(?!dtype|tf32|bf16).*")
"""Settings that may differ between runs that count as the same: the seed, and where and how a run trains."""


def plan_of(cell: Cell, command: str = "") -> Plan:
    """The comparison of a cell's methods. They take over options of the preset's own method, as in `compare`."""
    check_cell(cell)
    config, values = shared_config(cell.like, cell.settings, cell.rounds, typed=())
    own = dict(config.method)
    arms = []
    labels = [entry.label for entry in cell.entries]
    for entry, slug in zip(cell.entries, slugs(labels), strict=True):
        choice = check_method(completed(parse_choice(entry.method), own))
        arms.append(Arm(entry.label, slug, {"method": choice, **entry.settings}))
    fedavg = (arm.label for arm in arms if arm.settings["method"]["name"] == "fedavg")
    plan = Plan(
        "compare", cell.like, command, first_seeds(config, cell.seeds), tuple(arms), next(fedavg, labels[0]), values
    )
    for number, arm in enumerate(arms):
        where = f"The cell {cell.name!r}, {arm.label}"
        parse(next(plan.pieces(arm)).values, where)
        if arm_of(plan, arm.settings) is not arms[number]:
            raise CounterpoiseError(f"{where}: another method of the cell has the same settings.")
    return with_code(plan)


def arm_of(plan: Plan, settings: Mapping[str, Any]) -> Arm | None:
    """The arm of a plan with these settings. A plan that was extended may have given it another label."""
    return next((arm for arm in plan.arms if arm.settings == settings), None)


def placed(cell: Cell, plan: Plan, arm: Arm) -> Iterator[Piece]:
    """The runs of one arm of a cell, with their places in the study's folder."""
    for piece in plan.pieces(arm):
        yield replace(piece, place=f"{cell.slug}/{piece.place}", label=f"{cell.name}: {arm.label}")


def differing(before: Mapping[str, Any], now: Mapping[str, Any], where: str) -> tuple[str, Any, Any] | None:
    """The first setting in which two configurations differ, with both values; None if runs of both are the same.

    The seed and where a run trains do not count. A setting that did not exist when the first was written counts with
    its default.
    """
    one, other = (flatten(parse(values, where).plain()) for values in (before, now))
    for key in sorted(one.keys() | other.keys()):
        if not _FREE.fullmatch(key) and one.get(key) != other.get(key):
            return key, one.get(key), other.get(key)
    return None
