"""Compare runs on disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from counterpoise.cli.screen import echo, output, print_told
from counterpoise.cli.shelf import chosen, places
from counterpoise.cli.tables import stand_table
from counterpoise.comparisons.collection import collect, groups
from counterpoise.comparisons.contents import COMPARISON
from counterpoise.comparisons.ranking import reached, verdict
from counterpoise.comparisons.standing import stand
from counterpoise.comparisons.tables import FORMATS, as_plain
from counterpoise.errors import CounterpoiseError, unknown

__all__ = ["compare_all"]


def compare_all(
    folders: Sequence[Path] | None,
    baseline: str | None,
    method: str,
    data: str,
    since: str,
    before: str,
    form: str,
    metric: str,
    target: float | None,
    as_json: bool,
) -> None:
    """The runs in folders, compared seed by seed."""
    if form not in ("text", *FORMATS):
        raise unknown("format", form, ("text", *FORMATS))
    if target is not None and form != "text":
        raise CounterpoiseError(f"--target works with text and --json; a table in {form} has no column for it.")
    there = places(folders)
    whole = len(there) == 1 and (there[0] / COMPARISON).exists() and not (method or data or since or before)
    found = stand(
        collect(there) if whole else groups(chosen(folders, method, data, since, before)), baseline, metric=metric
    )
    if not found.rows:
        raise CounterpoiseError("There are no runs to compare.")
    if as_json:
        echo(
            json.dumps(
                {
                    "baseline": found.baseline,
                    "metric": found.metric,
                    "groups": as_plain(found, target),
                    "verdict": verdict(found),
                }
            )
        )
    elif form == "text":
        console = output()
        console.print(stand_table(found, width=console.width))
        print_told(reached(found, target) + (verdict(found) if len(found.rows) > 1 else []), console)
    else:
        echo(FORMATS[form](found))
