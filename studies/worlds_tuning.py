"""Baselines tuned in each world: the study that follows from the sweep, and the part of the page that shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from worlds_standing import OURS, USUAL, by_cell, mean_over, stands, waiting, with_interval

from counterpoise.studies.standing import Row
from counterpoise.studies.tables import filled, pipes

NAMES = {"fedadam": "FedAdam", "feddyn": "FedDyn", "fedvarp": "FedVARP", "fedavgm": "FedAvgM"}
_TUNED = """\
# Written by `python studies/worlds.py --tune` from the results of worlds-sweep.toml.
title = "Four baselines at the best value of their option"
about = "In each world the value that was best in the sweep, on other seeds than these."
seeds = 5
metric = "mean of the last 4"
set = { evaluation.every = 5 }
"""


def tuned(rows: Sequence[Row]) -> str:
    """The study of each method at the value that was best in the sweep, world by world."""
    parts = [_TUNED]
    for name, found in by_cell(rows).items():
        best = [max(some, key=lambda row: row.mean).entry.label for some in _families(found).values()]
        methods = ", ".join(f'"{label}"' for label in best)
        parts.append(f'[[cell]]\nname = "{name}"\nlike = "worlds/{name}"\nmethods = [{methods}]\n')
    return "\n".join(parts)


def _families(found: Mapping[str, Row]) -> dict[str, list[Row]]:
    """The rows of a world by the name of the method."""
    families: dict[str, list[Row]] = {}
    for label, row in found.items():
        families.setdefault(label.partition("(")[0], []).append(row)
    return families


def ends(rows: Sequence[Row]) -> Counter[tuple[str, str]]:
    """In how many worlds the best value of a method was the largest or the smallest that was measured there.

    Worlds in which all values of a method are as good do not count.
    """
    found: Counter[tuple[str, str]] = Counter()
    for some in by_cell(rows).values():
        for name, family in _families(some).items():
            values = sorted(_value(row) for row in family)
            best = _value(max(family, key=lambda row: row.mean))
            differ = len({round(row.mean, 1) for row in family}) > 1
            found[name, "largest"] += differ and best == values[-1]
            found[name, "smallest"] += differ and best == values[0]
    return +found


def _value(row: Row) -> float:
    """The value of the one option that a label names: ``fedadam(lr=0.03)``."""
    return float(row.entry.label.partition("=")[2].rstrip(")"))


def against_tuned(rows: Sequence[Row], best: Sequence[Row], sweep: Sequence[Row]) -> Iterator[str]:
    """The part of the page. All means of a line are over the same seeds."""
    cells, lines, below, untuned = by_cell(rows), [], 0, list[str]()
    for name, found in by_cell(best).items():
        plain = cells.get(name, {})
        world = stands(name, {**found, **{label: plain[label] for label in (OURS, USUAL) if label in plain}})
        if world is None:
            continue
        means = {
            label: mean_over(world.seeds, row) for label, row in plain.items() if {*world.seeds} <= row.values.keys()
        }
        default, value = max(
            ((label, mean) for label, mean in means.items() if label != OURS), key=lambda pair: pair[1]
        )
        if world.best_mean < value:
            below += 1
            if default.partition("(")[0] not in NAMES:
                untuned.append(f"`{default}` in `{name}`")
        line = [name, f"{world.best_mean:.1f} `{world.best}`", f"{value:.1f} `{default}`", f"{world.ours:.1f}"]
        lines.append([*line, with_interval(world.lead), world.standing])
    if not lines:
        return
    yield "## Against baselines that were tuned"
    yield filled(
        "FedAdam, FedDyn, FedVARP and FedAvgM, each at the best of some values of its main option in that world, chosen "
        "on other seeds (`studies/worlds-sweep.toml`) and measured on these. `counterpoise` has its defaults. All values "
        "of a line are means over the seeds that its methods share, so that they can be subtracted. They can differ from "
        "the table above, where a world may have more seeds."
    )
    yield pipes(["world", "best tuned", "best at its defaults", OURS, "lead over best tuned", ""], lines)
    yield filled(
        f"In {below} of {len(lines)} worlds the best tuned method is below the best method at its defaults"
        + f", which was not tuned in {len(untuned)} of them ({', '.join(untuned)})" * bool(untuned)
        + ". In the others the defaults are among the values tried, but what is best on three other seeds need not be best "
        "on these, and a value that ran again in other batches was rounded otherwise by the GPU. "
        + _narrow([row for row in sweep if row.cell.name in by_cell(best)])
    )
    if left := waiting(rows, [name for name, *_ in lines]):
        yield filled(f"Not tuned yet: {left}.")


def _narrow(sweep: Sequence[Row]) -> str:
    """Where the best value was at an end of what was tried, and which values are still to be measured."""
    worlds = len(by_cell(sweep))
    told = [f"the {end} for {NAMES[name]} in {count}" for (name, end), count in ends(sweep).most_common()]
    labels = list(dict.fromkeys(row.entry.label for row in sweep))
    waiting = [f"`{one}`" for one in labels if not any(row.values for row in sweep if row.entry.label == one)]
    words = f"Of the values tried in these {worlds} worlds, the one chosen was {', '.join(told)}. " if told else ""
    beyond = "So better values may lie beyond. " if told else ""
    more = f"Not measured yet: {', '.join(waiting)}." if waiting else ""
    return (words + beyond + more).rstrip()
