"""What a mean of late models does to each method: the part of the page about averaging."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from worlds_standing import OURS, USUAL, ahead, by_cell, counted, shared, stands, waiting, with_interval

from counterpoise.studies.standing import Row
from counterpoise.studies.tables import filled, pipes

_AVERAGED = f"{OURS}(averaged=10)"
_STANDARDISED = "standardised "


def with_averaging(rows: Sequence[Row], standard: Sequence[Row], averaged: Sequence[Row]) -> Iterator[str]:
    """The worlds with averaged models, beside the same methods with their last models. Nothing without results."""
    plain = by_cell(rows) | {_STANDARDISED + name: found for name, found in by_cell(standard).items()}
    worlds, lines = [], []
    for name, found in by_cell(averaged).items():
        world = stands(name, {_plain(label): row for label, row in found.items()})
        if world:
            worlds.append(world)
            gains = [_gain(plain[name], found, label) for label in (USUAL, world.best, OURS)]
            values = [f"{world.usual:.1f}", f"{world.best_mean:.1f} `averaged:{world.best}`", f"{world.ours:.1f}"]
            shown = [f"{value} ({gain})" for value, gain in zip(values, gains, strict=True)]
            lines.append([name, *shown, with_interval(world.lead), world.standing])
    if not worlds:
        return
    yield "## With averaged models"
    yield filled(
        "A mean of late models was measured in place of the last one (`averaged:NAME`, `counterpoise(averaged=10)`). "
        "Clients train as before. FedAvg, FedAvgM, FedAdam, FedDyn and FedVARP were averaged too. In brackets: by how much "
        f"averaging raised the mean over the seeds that were run with and without it. `{OURS}` is {counted(worlds)}."
    )
    heads = ["world", "FedAvg, averaged", "best other, averaged", f"`{_AVERAGED}`", "lead", ""]
    yield pipes(heads, lines)
    if left := waiting(averaged, [world.name for world in worlds]):
        yield filled(f"Not run yet, or not with every method: {left}.")


def _plain(label: str) -> str:
    """The method's name without its averaging."""
    return OURS if label == _AVERAGED else label.removeprefix("averaged:")


def _gain(plain: Mapping[str, Row], averaged: Mapping[str, Row], label: str) -> str:
    """What averaging adds to a method, in points."""
    after = averaged[_AVERAGED if label == OURS else f"averaged:{label}"]
    return f"{ahead(after, plain[label], shared(after, plain[label])).difference:+.1f}"
