"""What a mean of late models does to each method: the part of the page about averaging."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from worlds_standing import OURS, ahead, by_cell, counted, lacking, lost_runs, shared, stands, waiting, with_interval

from counterpoise.studies.standing import Row
from counterpoise.studies.tables import filled, pipes

_STANDARDISED = "standardised "


def with_averaging(rows: Sequence[Row], standard: Sequence[Row], averaged: Sequence[Row]) -> Iterator[str]:
    """The worlds with averaged models, beside the same methods with their last models. Nothing without results."""
    plain = by_cell(rows) | {_STANDARDISED + name: found for name, found in by_cell(standard).items()}
    cells = {name: {_plain(label): row for label, row in found.items()} for name, found in by_cell(averaged).items()}
    few = lacking(averaged)
    worlds = [world for name, found in cells.items() if name not in few and (world := stands(name, found))]
    if not worlds:
        return
    labels = list(dict.fromkeys(_plain(row.entry.label) for row in averaged))

    def value(name: str, label: str) -> str:
        """A mean, and what averaging adds to it."""
        if label not in cells[name]:
            return ""
        after, before = cells[name][label], plain[name][label]
        return f"{after.mean:.1f} ({ahead(after, before, shared(after, before)).difference:+.1f})"

    yield "## With averaged models"
    yield filled(
        "Here every method is evaluated with a mean of its late models (`averaged:NAME`, `counterpoise(averaged=10)`); "
        "training does not change. In brackets: the gain over the same method without averaging, on the same seeds. The "
        f"lead is that over the best other method of the line. `{OURS}` is {counted(worlds)}."
    )
    lines = [
        [world.name, *(value(world.name, label) for label in labels), with_interval(world.lead), world.standing]
        for world in worlds
    ]
    yield pipes(["world, all averaged", *labels, "lead", ""], lines)
    if lost := lost_runs(averaged):
        yield filled(lost)
    if left := waiting(averaged, [world.name for world in worlds]):
        yield filled(f"Not run yet, or not with every method: {left}.")


def _plain(label: str) -> str:
    """The method's name without its averaging."""
    return label.removeprefix("averaged:").removesuffix("(averaged=10)")
