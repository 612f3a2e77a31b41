"""What the parts of `counterpoise` do: whom its gate left out, and what it has without each part."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from worlds_standing import OURS, ahead, at_chance, by_cell, matrix, shared, waiting

from counterpoise.studies.standing import Row
from counterpoise.studies.tables import filled, pipes

_NOISE = 1.0
"""The most by which a mean of `counterpoise` moved between two measurements (`fmnist-lq2-sparse`: 71.6, 70.6)."""
_LEFT_OUT = {"honest": ", honest left out", "hostile": ", hostile left out"}


def left_out(rows: Sequence[Row]) -> Iterator[str]:
    """The part of the page about the gate."""
    shares: dict[str, dict[str, Row]] = {}
    for row in rows:
        for who, ending in _LEFT_OUT.items():
            if row.cell.runs_of and row.cell.name.endswith(ending) and row.values:
                shares.setdefault(row.cell.runs_of, {})[who] = row
    yield "## Replies that its gate left out"
    yield "In per cent of all replies of honest clients, and of attackers; and of the honest in the worst run."
    lines = []
    for cell, found in shares.items():
        means = [f"{found[who].mean:.2f}" if who in found else "" for who in _LEFT_OUT]
        lines.append([cell, *means, f"{max(found['honest'].values.values()):.2f}" if "honest" in found else ""])
    yield pipes(["world", *_LEFT_OUT, "honest, worst run"], lines)


def each_part(rows: Sequence[Row], forms: Sequence[Row]) -> Iterator[str]:
    """What each part adds: the accuracy of the whole, and how far each form is from it on the seeds that both have."""
    cells = {name: found for name, found in by_cell(forms).items() if OURS in found}
    if not cells:
        return
    moved, run, mean = apart(rows, forms)
    again = "The whole has the same runs as in the first table"
    if moved:
        again += (
            f", except in {', '.join(f'`{name}`' for name in moved)}, where it was run again with the same seeds and other "
            f"runs beside it in a batch, so that a GPU rounds otherwise. That alone made up to {run:.1f} points of "
            f"difference in a run and {mean:.1f} in a mean"
        )
    yield "## Each part switched off"
    yield filled(
        "The accuracy of the whole, and how many points every other form is above it (+) or below it (-) over the seeds "
        "that both have, ± half the 95 % interval of that difference. "
        f"{again}. An earlier rerun of a world moved a mean by {_NOISE:.1f}. Read nothing into differences up to "
        f"{max(mean, _NOISE):.1f}, or into those of worlds with runs at chance."
    )
    labels = list(dict.fromkeys([OURS, *(row.entry.label for row in forms)]))

    def away(cell: str, label: str) -> str:
        seeds = shared(cells[cell][OURS], cells[cell][label])
        if not seeds:
            return ""
        found = ahead(cells[cell][label], cells[cell][OURS], seeds)
        chance = f" ± {found.least:.1f}" if found.least == found.least else ""
        return f"{round(found.difference, 1) or 0.0:+.1f}{chance}"

    yield matrix(
        cells, labels, lambda cell, label: f"{cells[cell][OURS].mean:.1f}" if label == OURS else away(cell, label)
    )
    idle = [f"*{label}*" for label in labels if not any(label in cell for cell in cells.values())]
    if idle:
        yield f"Not run yet: {', '.join(idle)}."
    ran = [label for label in labels if f"*{label}*" not in idle]
    if gaps := [name for name, cell in cells.items() if not all(label in cell for label in ran)]:
        yield filled(f"Not run yet with every form: {', '.join(f'`{name}`' for name in gaps)}.")
    if left := waiting(forms, cells):
        yield filled(f"Not run yet on {left}.")


def apart(rows: Sequence[Row], again: Sequence[Row]) -> tuple[list[str], float, float]:
    """Where our method's runs with the same seeds differ between two studies, and how far: the most in a run, and in a mean.

    Worlds in which one of them ended at chance are left out: whether a broken model recovers is luck, and worth twenty
    points.
    """
    first, second = by_cell(rows), by_cell(again)
    both = {name: (first[name][OURS], cell[OURS]) for name, cell in second.items() if OURS in cell and name in first}
    found = {
        name: [two.values[seed] - one.values[seed] for seed in shared(one, two)]
        for name, (one, two) in both.items()
        if not at_chance(one) and not at_chance(two)
    }
    moved = {name: some for name, some in found.items() if any(some)}
    run = max((abs(one) for some in moved.values() for one in some), default=0.0)
    return [*moved], run, max((abs(statistics.mean(some)) for some in moved.values()), default=0.0)
