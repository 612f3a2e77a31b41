"""What `counterpoise` was meant to reach before it was built, beside what the results say."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from worlds_standing import World, counted, set_up

from counterpoise.studies.standing import Row
from counterpoise.studies.tables import filled, pipes

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
_DATA = {"fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
_SKEWED = ("dirichlet", "lq", "rare")
_ENOUGH, _BEHIND, _GAIN, _LEAD, _LEFT_OUT = (14, 16), 1.0, 4.0, 1.5, 0.5
_TIMES = {
    "one GPU": (1.3, "methods-cuda-counterpoise.json"),
    "CPU, clients as one batch": (1.1, "methods-cpu-counterpoise-batched.json"),
    "CPU, one client at a time": (1.15, "methods-cpu-counterpoise-per-client.json"),
}
"""Where a round was timed: the most that was aimed at, and the file with its raw times, if they were kept."""
_REACHED = {True: "yes", False: "no", None: ""}


def reached(worlds: Sequence[World], rows: Sequence[Row]) -> Iterator[str]:
    """The part of the page."""
    whole = {world.name for world in worlds}
    rows = [row for row in rows if row.cell.runs_of in whole]
    yield "## What it was meant to reach, and what it reaches"
    yield filled(
        "The aims were set for 16 worlds. *Honest* worlds have no attackers. *Label skew* means neither IID data nor "
        "clients that differ in size alone."
    )
    yield _table([*_of_accuracy(worlds), *_left_out(rows), *_times()])


def in_accuracy(worlds: Sequence[World]) -> str:
    """The aims of accuracy alone, as a table."""
    return _table([*_of_accuracy(worlds)])


def _table(lines: Sequence[Sequence[Any]]) -> str:
    return pipes(["", "aim", "found", "reached"], [[*words, _REACHED[fine]] for *words, fine in lines])


def _of_accuracy(worlds: Sequence[World]) -> Iterator[list[Any]]:
    yield _best(worlds)
    yield _furthest(worlds)
    yield from _gains(worlds)
    yield from _under_attack(worlds)


def _best(worlds: Sequence[World]) -> list[Any]:
    fine = [world for world in worlds if world.standing != "behind"]
    enough, of = _ENOUGH
    tied = sum(world.standing == "tied" for world in worlds)
    found = f"{counted(worlds)}, tied in {tied or 'none'}"
    return ["best or tied", f"in {enough} of {of} worlds", found, len(fine) / len(worlds) >= enough / of]


def _furthest(worlds: Sequence[World]) -> list[Any]:
    below = (world for world in worlds if round(world.lead.difference, 1) < 0)
    behind = sorted(below, key=lambda world: world.lead.difference)
    found = "; ".join(f"{-world.lead.difference:.1f} points in `{world.name}`" for world in behind) or "never behind"
    fine = all(world.lead.difference >= -_BEHIND for world in worlds)
    return ["behind the best other method", f"nowhere by more than {_BEHIND:g} point", found, fine]


def _gains(worlds: Sequence[World]) -> Iterator[list[Any]]:
    for data, title in _DATA.items():
        some = [world for world in worlds if set_up(world.name).data.name == data and _skewed_and_partial(world.name)]
        gains = {world.name: world.ours - world.usual for world in some}
        if gains:
            mean = statistics.mean(gains.values())
            each = ", ".join(f"`{name}` {gain:.1f}" for name, gain in gains.items())
            what = f"mean gain over FedAvg in honest worlds with label skew and some clients a round, {title}"
            yield [what, f"{_GAIN:g} points", f"{mean:.1f} points ({each})", mean >= _GAIN]


def _skewed_and_partial(name: str) -> bool:
    """Whether a world is honest, with label skew, and a round asks only some of its clients."""
    made = set_up(name)
    partition: Mapping[str, Any] = made.data.partition or {}
    asked = made.cohort["of"] if isinstance(made.cohort, Mapping) else made.cohort
    return not made.adversary and partition["name"] in _SKEWED and asked < partition["clients"]


def _under_attack(worlds: Sequence[World]) -> Iterator[list[Any]]:
    kinds: dict[str, Callable[[str], bool]] = {
        "Fashion-MNIST, Dirichlet 0.3": lambda name: (
            set_up(name).data.name == "fashion-mnist" and (set_up(name).data.partition or {}).get("alpha") == 0.3
        ),
        "all": lambda name: True,
    }
    for title, chosen in kinds.items():
        leads = [world.lead.difference for world in worlds if set_up(world.name).adversary and chosen(world.name)]
        if leads:
            mean = statistics.mean(leads)
            found = f"{min(leads):.1f} points at least, {mean:.1f} in the mean"
            what = f"lead over the best other method under attack, {title} ({len(leads)} worlds)"
            aim = f"0 points at least, {_LEAD:g} in the mean"
            yield [what, aim, found, min(leads) >= 0 and mean >= _LEAD]


def _left_out(rows: Sequence[Row]) -> Iterator[list[Any]]:
    if not (views := _honest(rows, ", honest left out")):
        return
    name, most = max(views.items(), key=lambda pair: pair[1].mean)
    worst = sorted(((max(row.values.values()), name) for name, row in views.items()), reverse=True)[:2]
    runs = " and ".join(f"{value:.1f} % in `{name}`" for value, name in worst)
    found = f"{most.mean:.2f} % in `{name}`, the most of any world; in the worst runs {runs}"
    aim = f"under {_LEFT_OUT:g} % in every world"
    yield ["honest replies that the gate leaves out, honest worlds", aim, found, most.mean < _LEFT_OUT]
    words = ["honest clients that the gate leaves out, honest worlds", "none more than once"]
    if often := _honest(rows, ", honest left out twice"):
        name, most = max(often.items(), key=lambda pair: pair[1].mean)
        some = sum(row.mean > 0 for row in often.values())
        where = f"some in {some} of {len(often)} worlds; most in `{name}`: {most.mean:.2f} % of its honest clients"
        found = where if some else "none"
        yield [*words, found, not most.mean]
    else:
        yield [*words, "not counted yet", None]


def _honest(rows: Sequence[Row], ending: str) -> dict[str, Row]:
    """The views with this ending of worlds without adversaries, by world."""
    views = [row for row in rows if row.cell.name.endswith(ending) and row.values]
    return {row.cell.runs_of: row for row in views if not set_up(row.cell.runs_of).adversary}


def _times() -> Iterator[list[Any]]:
    for place, (most, name) in _TIMES.items():
        words = [f"a round's time over FedAvg's, {place}", f"at most {most:g}"]
        if (path := BENCHMARKS / name).exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            time = kept["methods"]["counterpoise"]["time"]
            asked = f"{kept['a round']} of {kept['clients']} clients; " if "clients" in kept else ""
            yield [*words, f"{time:.2f} ({asked}`benchmarks/results/{name}`)", time <= most]
        else:
            yield [*words, "measured once; the raw times were not kept", None]
