"""`make evidence`: write docs/worlds.md and its figure from the results of the studies of worlds.

With --tune, it writes studies/worlds-tuned.toml instead: for each world, each of four methods at the value of its option
that was best in studies/worlds-sweep.toml, whose seeds are others. Its runs are measured on the seeds of worlds.toml.
"""

from __future__ import annotations

import argparse
import statistics
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from counterpoise.measures.significance import Paired, paired
from counterpoise.runs.config import parse, read
from counterpoise.studies.drawing import ahead_of
from counterpoise.studies.finding import found_in
from counterpoise.studies.standing import Row
from counterpoise.studies.tables import filled

HERE = Path(__file__).resolve().parent
OURS, USUAL = "counterpoise", "fedavg"
_MARGIN, _FEWEST = 1.0, 5
_AXIS = 10.0
_SHORT = {
    "fmnist-iid": "IID, 10 of 100 clients a round",
    "fmnist-dir01": "strong label skew (Dirichlet 0.1), 10 of 100",
    "fmnist-lq2": "two labels a client, 10 of 100",
    "fmnist-lq2-sparse": "two labels a client, 5 of 400",
    "fmnist-full-momentum": "mild skew, all of 20 clients, local momentum",
    "fmnist-quantity": "clients of very unequal size, 10 of 100",
    "fmnist-claims": "10 % claim ten times their data",
    "fmnist-sign-flips": "20 % send their update reversed",
    "fmnist-little": "20 % collude to stay within the spread",
}
"""The worlds that the README shows, in its words."""
_LEFT_OUT = {"honest": ", honest left out", "hostile": ", hostile left out"}

INTRODUCTION = """\
# Which method helps in which world

Every method of this table was run in every world with its defaults. The worlds were fixed before any method was
measured in them; the presets `worlds/NAME` hold them. Values are test accuracies in per cent: means over seeds of the
mean of a run's last four evaluations. *Lead* is that of `counterpoise` over the best other method of that world, with
the 95 % interval of the paired difference. It is *best* if its mean is the highest, and *tied* if the interval holds 0
and lies above -1. `make evidence` writes this page from `studies/worlds.json` and `studies/worlds-ablation.json`."""

_REPEATING = """\
To repeat a row, run its cell in a clone, with all methods or some, and keep the results in a file of your own:

    counterpoise study run studies/worlds.toml --cells {0} --methods fedavg,counterpoise --results mine.json

A run of `{0}` took {1:.0f} to {2:.0f} s here ({3}), because many runs trained as one batch. A single one took
220 s on two CPU cores. `counterpoise compare worlds/{0}` runs the same methods, but evaluates in every round
and shows the last one.
"""
_REPEATED = "fmnist-lq2"


_TUNED = """\
# Written by `python studies/worlds.py --tune` from the results of worlds-sweep.toml.
title = "Four baselines at the best value of their option"
about = "In each world the value that was best in the sweep, on other seeds than these."
seeds = 5
metric = "mean of the last 4"
set = { evaluation.every = 5 }
"""


class World(NamedTuple):
    """How the methods stand in one world."""

    name: str
    usual: float
    best: str
    best_mean: float
    ours: float
    lead: Paired
    standing: str


def main() -> None:
    """Write the page and its figure."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--out", type=Path, default=HERE.parent / "docs", help="folder for the page")
    words.add_argument("--tune", action="store_true", help="write studies/worlds-tuned.toml")
    given = words.parse_args()
    if given.tune:
        found = found_in(HERE / "worlds-sweep.toml").rows
        (HERE / "worlds-tuned.toml").write_text(tuned(found), encoding="utf-8")
        return
    out = given.out
    (out / "figures").mkdir(exist_ok=True)
    names = ("worlds", "worlds-ablation", "worlds-tuned")
    rows, forms, best = (found_in(path).rows if (path := HERE / f"{name}.toml").exists() else [] for name in names)
    (out / "worlds.md").write_text(page(rows, forms, best), encoding="utf-8")
    main_rows = [row for row in rows if not row.cell.runs_of]
    drawn = ahead_of(main_rows, OURS, "counterpoise among fifteen other methods", _AXIS)
    (out / "figures" / "worlds.svg").write_text(drawn, encoding="utf-8")


def page(rows: Sequence[Row], forms: Sequence[Row], best: Sequence[Row]) -> str:
    """The whole page."""
    worlds = [world for name, some in by_cell(rows).items() if (world := stands(name, some))]
    parts = [
        INTRODUCTION,
        *_set_ups(worlds),
        *_repeating(rows),
        *_leads(worlds),
        *_not_best(worlds, rows),
        *_tuned(rows, best),
        *_all(rows),
    ]
    parts += [*_left_out(rows), *_forms(forms)]
    return "\n\n".join(parts).rstrip() + "\n"


def by_cell(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """The methods that have values, by cell and label, without views."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row.values and not row.cell.runs_of:
            found.setdefault(row.cell.name, {})[row.entry.label] = row
    return found


def stands(name: str, rows: Mapping[str, Row]) -> World | None:
    """How our method stands; None without it, without FedAvg or with fewer than five seeds that all have."""
    if not {OURS, USUAL} <= rows.keys():
        return None
    ours = rows[OURS].values
    best = max((label for label in rows if label != OURS), key=lambda label: rows[label].mean)
    seeds = sorted(ours.keys() & rows[best].values.keys())
    if len(seeds) < _FEWEST:
        return None
    lead = paired([ours[seed] for seed in seeds], [rows[best].values[seed] for seed in seeds])
    return World(name, rows[USUAL].mean, best, rows[best].mean, rows[OURS].mean, lead, standing(lead))


def standing(lead: Paired) -> str:
    """best, tied or behind, by the paired difference."""
    if lead.difference >= 0:
        return "best"
    return "tied" if lead.high >= 0 and lead.low > -_MARGIN else "behind"


def tuned(rows: Sequence[Row]) -> str:
    """The study of each method at the value that was best in the sweep, world by world."""
    parts = [_TUNED]
    for name, found in by_cell(rows).items():
        families: dict[str, list[Row]] = {}
        for label, row in found.items():
            families.setdefault(label.partition("(")[0], []).append(row)
        best = [max(some, key=lambda row: row.mean).entry.label for some in families.values()]
        methods = ", ".join(f'"{label}"' for label in best)
        parts.append(f'[[cell]]\nname = "{name}"\nlike = "worlds/{name}"\nmethods = [{methods}]\n')
    return "\n".join(parts)


def about(world: str) -> str:
    """What a preset says of itself."""
    text = (files("counterpoise") / "presets" / "worlds" / f"{world}.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(text)["paper"]["about"])


def short(rows: Sequence[Row]) -> str:
    """The README's table: some worlds and methods, the best value of each world in bold."""
    labels = {USUAL: "FedAvg", "fedadam": "FedAdam", "feddyn": "FedDyn", "scaffold": "SCAFFOLD", "fedvarp": "FedVARP"}
    labels |= {"feddua:fedavg": "FedDua", OURS: f"`{OURS}`"}
    cells, lines = by_cell(rows), []
    for name, words in _SHORT.items():
        values = [f"{cells[name][label].mean:.1f}" for label in labels]
        most = max(values, key=float)
        lines.append([words, *(f"**{value}**" if value == most else value for value in values)])
    return _pipes(["Fashion-MNIST, LeNet-5, 100 rounds", *labels.values()], lines)


def _set_ups(worlds: Sequence[World]) -> Iterator[str]:
    """How clients train, for each data set and model, with the number of worlds."""
    found: Counter[tuple[str, ...]] = Counter()
    for world in worlds:
        name = f"worlds/{world.name}"
        made = parse(read(name)[0], name)
        local = (made.local.epochs, made.local.batch, made.local.optimizer["lr"])
        found[tuple(map(str, (made.data.name, made.data.samples, made.model["name"], made.rounds, *local)))] += 1
    heads = ["data", "training images used", "model", "rounds", "local epochs", "batch", "SGD's rate", "worlds"]
    yield _pipes(heads, [[*one, str(count)] for one, count in found.items()])


def _repeating(rows: Sequence[Row]) -> Iterator[str]:
    """The command that repeats a row, and how long its runs took."""
    some = by_cell(rows).get(_REPEATED, {}).values()
    outcomes = [[one for one in row.outcomes.values() if one.status == "finished"] for row in some]
    times = [statistics.mean(one.seconds for one in ended) for ended in outcomes if ended]
    if times:
        machine = outcomes[0][0].made.machine.partition(",")[0]
        yield _REPEATING.format(_REPEATED, min(times), max(times), machine).rstrip()


def _leads(worlds: Sequence[World]) -> Iterator[str]:
    heads = ["world", "FedAvg", "best other", OURS, "lead", ""]
    lines = [
        [
            about(world.name),
            f"{world.usual:.1f}",
            f"{world.best_mean:.1f} `{world.best}`",
            f"{world.ours:.1f}",
            _lead(world.lead),
            world.standing,
        ]
        for world in worlds
    ]
    yield _pipes(heads, lines)
    yield "![Accuracy of counterpoise and of every other method in every world](figures/worlds.svg)"
    counts = {word: sum(world.standing == word for world in worlds) for word in ("best", "tied", "behind")}
    over = statistics.mean(world.ours - world.usual for world in worlds)
    least = min(world.lead.difference for world in worlds)
    yield (
        f"Of {len(worlds)} worlds `counterpoise` is best in {counts['best']}, tied in {counts['tied']} and behind in "
        f"{counts['behind']}. On average it is {over:.1f}\npoints above FedAvg. Its smallest lead over the best other "
        f"method is {least:+.1f}."
    )


def _not_best(worlds: Sequence[World], rows: Sequence[Row]) -> Iterator[str]:
    notes = {row.cell.name: row.cell.note for row in rows}
    behind = [world for world in worlds if world.standing != "best"]
    if behind:
        yield "## Where it is not best"
        for world in behind:
            words = f"{about(world.name)}: {world.standing}, {world.lead.difference:+.1f} against `{world.best}`."
            yield filled(f"{words} {notes[world.name]}".rstrip())


def _tuned(rows: Sequence[Row], best: Sequence[Row]) -> Iterator[str]:
    ours = {name: found[OURS] for name, found in by_cell(rows).items() if OURS in found}
    worlds = [
        world
        for name, found in by_cell(best).items()
        if name in ours and (world := stands(name, {**found, OURS: ours[name], USUAL: by_cell(rows)[name][USUAL]}))
    ]
    if worlds:
        yield "## Against baselines that were tuned"
        yield (
            "FedAdam, FedDyn, FedVARP and FedAvgM, each at the best of three values of its main option in that world, chosen\n"
            "on other seeds (`studies/worlds-sweep.toml`). `counterpoise` has its defaults."
        )
        yield _pipes(
            ["world", "best tuned", OURS, "lead", ""],
            [[w.name, f"{w.best_mean:.1f} `{w.best}`", f"{w.ours:.1f}", _lead(w.lead), w.standing] for w in worlds],
        )


def _lead(lead: Paired) -> str:
    return f"{lead.difference:+.1f} ({lead.low:+.1f} to {lead.high:+.1f})"


def _all(rows: Sequence[Row]) -> Iterator[str]:
    yield "## Every method"
    cells = by_cell(rows)
    labels = list(dict.fromkeys(label for cell in cells.values() for label in cell))
    yield _matrix(cells, labels, lambda cell, label: f"{cells[cell][label].mean:.1f}")


def _left_out(rows: Sequence[Row]) -> Iterator[str]:
    shares: dict[str, dict[str, float]] = {}
    for row in rows:
        for who, ending in _LEFT_OUT.items():
            if row.cell.runs_of and row.cell.name.endswith(ending) and row.values:
                shares.setdefault(row.cell.runs_of, {})[who] = row.mean
    yield "## Replies that its gate left out"
    yield "In per cent of all replies of honest clients, and of attackers."
    lines = [[cell, *(f"{found[w]:.2f}" if w in found else "" for w in _LEFT_OUT)] for cell, found in shares.items()]
    yield _pipes(["world", *_LEFT_OUT], lines)


def _forms(forms: Sequence[Row]) -> Iterator[str]:
    """What each part adds: the accuracy of the whole, and how far each form is from it on the seeds that both have."""
    cells = {name: found for name, found in by_cell(forms).items() if OURS in found}
    if not cells:
        return
    yield "## Each part switched off"
    yield (
        "The accuracy of the whole, and how many points every other form is above it (+) or below it (-) over the seeds\n"
        "that both have."
    )
    labels = [OURS, *dict.fromkeys(label for cell in cells.values() for label in cell if label != OURS)]

    def away(cell: str, label: str) -> str:
        whole, form = cells[cell][OURS].values, cells[cell][label].values
        seeds = sorted(whole.keys() & form.keys())
        return f"{round(statistics.mean(form[s] - whole[s] for s in seeds), 1) or 0.0:+.1f}" if seeds else ""

    yield _matrix(
        cells, labels, lambda cell, label: f"{cells[cell][OURS].mean:.1f}" if label == OURS else away(cell, label)
    )


def _matrix(cells: Mapping[str, Mapping[str, Row]], labels: Sequence[str], text: Callable[[str, str], str]) -> str:
    lines = [[cell, *(text(cell, label) if label in cells[cell] else "" for label in labels)] for cell in cells]
    return _pipes(["world", *labels], lines)


def _pipes(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *lines])


if __name__ == "__main__":
    main()
