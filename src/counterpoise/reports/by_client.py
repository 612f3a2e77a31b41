"""A table of clients and methods: how well each client is served, by its name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from counterpoise.comparisons.wording import dashed, unit_of
from counterpoise.measures import PERSONAL, across_seeds, metric_words, of_clients
from counterpoise.reports.chart import Table
from counterpoise.reports.figures.learning import OWN_DATA
from counterpoise.reports.study import Arm, Study

__all__ = ["by_client"]

_MOST = 30
"""A table of more clients is not read; the chart shows how they are spread."""


def by_client(found: Study) -> Iterator[Table]:
    """The table, if there are few clients and a client is the same one with every seed: it has a name, or one seed."""
    runs = [run for arm in found.arms for run in arm.runs]
    names = runs[0].client_names if runs else None
    same = len(found.seeds) == 1 if names is None else all(run.client_names == names for run in runs)
    columns = [_ends(arm, PERSONAL + found.metric) for arm in found.arms]
    clients = sorted({client for column in columns for client in column})
    if not clients or len(clients) > _MOST or not same:
        return
    unit, show = unit_of(found.metric)
    cells = [[_cell(column.get(client, []), show) for column in columns] for client in clients]
    spread = ": mean and sample deviation over seeds" if len(found.seeds) > 1 else ""
    yield Table(
        "clients",
        "Client by client",
        ["client", *(arm.label for arm in found.arms)],
        [[runs[0].name_of(client), *row] for client, row in zip(clients, cells, strict=True)],
        caption=f"{metric_words(found.metric).capitalize()}{unit and ' (%)'} in the last round that measured clients"
        f"{spread}. Measured on {OWN_DATA if found.personal else OWN_DATA.partition(':')[0]}.",
    )


def _ends(arm: Arm, metric: str) -> dict[int, list[float]]:
    """For each client, its last value with every seed."""
    found: dict[int, list[float]] = {}
    for run in arm.runs:
        for client, value in of_clients(run.records, metric).items():
            if math.isfinite(value):
                found.setdefault(client, []).append(value)
    return found


def _cell(values: list[float], show: Callable[[float], str]) -> str:
    mean, deviation = across_seeds(values)
    return dashed(mean, show) + dashed(deviation, lambda x: f" ± {show(x)}", "")
