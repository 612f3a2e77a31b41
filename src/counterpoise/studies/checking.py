"""Check a cell as far as this needs no torch, so that even showing a study checks it."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from counterpoise.errors import CounterpoiseError, brief
from counterpoise.runs.experiments import choice, override, read
from counterpoise.studies.measuring import check_measure
from counterpoise.studies.study import Cell

__all__ = ["check_cell"]


def check_cell(cell: Cell) -> None:
    """Refuse a cell whose `like` names no preset or file, that sets what it may not, or whose measure no run has."""
    if any(re.match(r"\s*method\s*[.=]", setting) for setting in cell.settings):
        raise CounterpoiseError(f"The cell {cell.name!r} takes its methods from methods = [...], not from set.")
    for entry in cell.entries:
        if "seed" in entry.settings:
            raise CounterpoiseError(f"The cell {cell.name!r}, {entry.label}: a method cannot set the seed.")
    check_measure(cell.metric.measure, _metrics(cell), f"in the cell {cell.name!r}")


def _metrics(cell: Cell) -> set[str]:
    """The names of all metrics that the cell's runs measure."""
    shared = override(read(cell.like)[0], cell.settings).get("metrics")
    given = [entry.settings.get("metrics", shared) or ["accuracy"] for entry in cell.entries]
    return set().union(*(_names(one, cell.name) for one in given))


def _names(metrics: Any, cell: str) -> set[str]:
    with contextlib.suppress(ValueError):
        if isinstance(metrics, list):
            return {choice(one)["name"].rpartition(":")[2] for one in metrics}
    raise CounterpoiseError(f"The cell {cell!r}: metrics must be a list of names, not {brief(metrics)}.")
