"""How the methods stand in each world. The page of worlds is computed from this."""

from __future__ import annotations

import statistics
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple

from counterpoise.measures.significance import Paired, paired
from counterpoise.runs.config import Config, parse, read
from counterpoise.studies.standing import Row
from counterpoise.studies.tables import pipes

OURS, USUAL = "counterpoise", "fedavg"
_MARGIN, _FEWEST = 1.0, 5
CHANCE = 11.0
"""Both data sets have ten classes, so guessing has 10 %. A run below this learnt nothing, or lost it again."""


class World(NamedTuple):
    """How our method stands in one world, over the seeds that it shares with FedAvg and with the best other method."""

    name: str
    usual: float
    best: str
    best_mean: float
    ours: float
    lead: Paired
    standing: str
    seeds: Sequence[int]


def by_cell(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """The methods that have values, by cell and label, without views."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row.values and not row.cell.runs_of:
            found.setdefault(row.cell.name, {})[row.entry.label] = row
    return found


def waiting(rows: Sequence[Row], ran: Collection[str]) -> str:
    """The worlds of a study that are not among these, as a list in words; empty if there are none."""
    names = dict.fromkeys(row.cell.name for row in rows if not row.cell.runs_of)
    return ", ".join(f"`{name}`" for name in names if name not in ran)


def standings(rows: Sequence[Row]) -> list[World]:
    """Every world in which all of its methods have enough runs."""
    few = lacking(rows)
    return [world for name, some in by_cell(rows).items() if name not in few and (world := stands(name, some))]


def lacking(rows: Sequence[Row]) -> set[str]:
    """The worlds in which some method has too few runs."""
    return {row.cell.name for row in rows if not row.cell.runs_of and ended(row) < _FEWEST}


def stands(name: str, rows: Mapping[str, Row]) -> World | None:
    """How our method stands; None without it, without FedAvg or with fewer than five seeds that all three have."""
    if not {OURS, USUAL} <= rows.keys():
        return None
    best = max((label for label in rows if label != OURS), key=lambda label: rows[label].mean)
    seeds = shared(rows[OURS], rows[best], rows[USUAL])
    if len(seeds) < _FEWEST:
        return None
    usual, best_mean, ours = (mean_over(seeds, rows[label]) for label in (USUAL, best, OURS))
    lead = ahead(rows[OURS], rows[best], seeds)
    return World(name, usual, best, best_mean, ours, lead, standing(lead), seeds)


def standing(lead: Paired) -> str:
    """How our method stands, by its paired difference to the best other."""
    if lead.difference >= 0:
        return "best, within noise" if lead.low <= 0 else "best"
    return "tied" if lead.high >= 0 and lead.low > -_MARGIN else "behind"


def counted(worlds: Sequence[World]) -> str:
    """In how many worlds our method is best."""
    best = [world.standing for world in worlds if world.standing.startswith("best")]
    return f"best in {len(best)} of {len(worlds)} worlds (in {best.count('best, within noise')} of them within noise)"


def shared(*rows: Row) -> list[int]:
    """The seeds that all these methods have."""
    return sorted(set.intersection(*(set(row.values) for row in rows)))


def mean_over(seeds: Sequence[int], row: Row) -> float:
    """A method's mean over some of its seeds."""
    return statistics.mean(row.values[seed] for seed in seeds)


def ahead(one: Row, other: Row, seeds: Sequence[int]) -> Paired:
    """By how much one method is ahead of another, seed by seed."""
    return paired([one.values[seed] for seed in seeds], [other.values[seed] for seed in seeds])


def at_chance(row: Row) -> int:
    """How many runs of a method ended at chance."""
    return sum(value < CHANCE for value in row.values.values())


def diverged(row: Row) -> int:
    """How many runs of a method diverged. They have no value."""
    return sum(one.status == "diverged" for one in row.outcomes.values())


def lost_runs(rows: Sequence[Row]) -> str:
    """A sentence on the runs that diverged, by method; empty if there are none."""
    lost = Counter[str]()
    for row in rows:
        lost[row.entry.label] += diverged(row)
    told = ", ".join(f"`{label}` {count}" for label, count in lost.items() if count)
    return f"Runs that diverged, and count in no mean: {told}." if told else ""


def ended(row: Row) -> int:
    """How many runs of a method have a value or diverged."""
    return len(row.values) + diverged(row)


def set_up(world: str) -> Config:
    """The configuration of a world's preset."""
    name = f"worlds/{world}"
    return parse(read(name)[0], name)


def about(world: str) -> str:
    """What a preset says of itself."""
    text = (files("counterpoise") / "presets" / "worlds" / f"{world}.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(text)["paper"]["about"])


def matrix(cells: Mapping[str, Mapping[str, Row]], labels: Sequence[str], text: Callable[[str, str], str]) -> str:
    """A table of worlds by methods."""
    lines = [[cell, *(text(cell, label) if label in cells[cell] else "" for label in labels)] for cell in cells]
    return pipes(["world", *labels], lines)


def with_interval(lead: Paired) -> str:
    """A lead with its interval."""
    return f"{lead.difference:+.1f} ({lead.low:+.1f} to {lead.high:+.1f})"
