"""`make evidence`: write docs/worlds.md, its figure and the tables of README and docs/choose.md from what was measured.

With --tune, it writes studies/worlds-tuned.toml instead: for each world, each of four methods at the value of its option
that was best in studies/worlds-sweep.toml, whose seeds are others. Its runs are measured on the seeds of worlds.toml.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from worlds_aims import in_accuracy, reached
from worlds_averaging import with_averaging
from worlds_parts import each_part, left_out
from worlds_standing import (
    CHANCE,
    OURS,
    USUAL,
    World,
    about,
    at_chance,
    by_cell,
    counted,
    diverged,
    ended,
    lost_runs,
    matrix,
    set_up,
    standings,
    stands,
    waiting,
    with_interval,
)
from worlds_tuning import NAMES, against_tuned, tuned

from counterpoise.studies.drawing import ahead_of
from counterpoise.studies.finding import found_in
from counterpoise.studies.standing import Row
from counterpoise.studies.tables import filled, pipes

HERE = Path(__file__).resolve().parent
FILES = (
    "worlds.toml",
    "worlds-ablation.toml",
    "worlds-sweep.toml",
    "worlds-tuned.toml",
    "worlds-standard.toml",
    "worlds-averaged.toml",
)
"""The studies that the page is written from, with their results beside them."""
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
_TABLE = "Fashion-MNIST, LeNet-5, 100 rounds"
_BEST = "best other"
_TITLES = NAMES | {"fedavg": "FedAvg", "fedprox": "FedProx", "scaffold": "SCAFFOLD", "feddua:fedavg": "FedDua"}
_PIXELS = {None: "0 to 1, not standardised", "unit": "0 to 1, not standardised", "standard": "standardised"}

INTRODUCTION = """\
# Which method helps in which world

Every method was run with its defaults in every world of the first table. The presets `worlds/NAME` hold these worlds.
Values are test accuracies in per cent: means over seeds of the mean of a run's last four evaluations. *Lead* is that of
`counterpoise` over the best other method of that world, with the 95 % interval of the paired difference. It is *best*
if its mean is the highest; if the interval holds 0, this is *within noise*. It is *tied* if its mean is not the
highest, and the interval holds 0 and lies above -1. `make evidence` writes this page from the results
`studies/worlds*.json` and the times in `benchmarks/results`.

All worlds but one were fixed before any method was measured in them. In `fmnist-hundredfold` the server's usual limit
on lengths at first refused most of the long updates (`counterpoise` 87.4, FedAvgM 84.1); it was then changed to let
them in."""

_REPEATING = """\
To repeat a row, run its cell in a clone, with all methods or some, and keep the results in a file of your own:

    counterpoise study run studies/worlds.toml --cells {0} \\
      --methods fedavg,counterpoise --results my-worlds.json

A run of `{0}` took {1:.0f} to {2:.0f} s on average, by method ({3}), because many runs trained as one
batch. A single one took 220 s on two CPU cores. `counterpoise compare worlds/{0}` runs the same methods, but
evaluates in every round and shows the last one.
"""
_REPEATED = "fmnist-lq2"


def main() -> None:
    """Write the page, its figure, and the tables of README and the page on choosing."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--out", type=Path, default=HERE.parent / "docs", help="folder for the page")
    words.add_argument("--tune", action="store_true", help="write studies/worlds-tuned.toml")
    given = words.parse_args()
    if given.tune:
        (HERE / "worlds-tuned.toml").write_text(tuned(found_in(HERE / "worlds-sweep.toml").rows), encoding="utf-8")
        return
    out = given.out
    (out / "figures").mkdir(parents=True, exist_ok=True)
    found = {name: found_in(HERE / name).rows for name in FILES}
    rows = found[FILES[0]]
    (out / "worlds.md").write_text(page(*found.values()), encoding="utf-8")
    whole = {world.name for world in standings(rows)}
    main_rows = [row for row in rows if row.cell.name in whole]
    drawn = ahead_of(main_rows, OURS, "counterpoise among fifteen other methods", _AXIS)
    (out / "figures" / "worlds.svg").write_text(drawn, encoding="utf-8")
    if (readme := out.parent / "README.md").exists():
        readme.write_text(with_table(readme.read_text(encoding="utf-8"), short(rows)), encoding="utf-8")
    if (choose := out / "choose.md").exists():
        choose.write_text(with_values(choose.read_text(encoding="utf-8"), rows), encoding="utf-8")


def page(
    rows: Sequence[Row],
    forms: Sequence[Row],
    sweep: Sequence[Row],
    best: Sequence[Row],
    standard: Sequence[Row],
    averaged: Sequence[Row],
) -> str:
    """The whole page."""
    worlds = standings(rows)
    parts = [
        INTRODUCTION,
        *_set_ups(worlds),
        *_repeating(rows),
        *_leads(worlds, rows),
        *_not_best(worlds, rows),
        *reached(worlds, rows),
        *with_standardised_pixels(rows, standard),
        *with_averaging(rows, standard, averaged),
        *against_tuned(rows, best, sweep),
        *every_method(rows),
        *left_out(rows),
        *each_part(rows, forms),
    ]
    return "\n\n".join(parts).rstrip() + "\n"


def short(rows: Sequence[Row]) -> str:
    """The README's table: some worlds and methods, the best value of each world, and what prints the same, in bold."""
    labels = [USUAL, "fedadam", "feddyn", "scaffold", "fedvarp", "feddua:fedavg"]
    cells, lines = by_cell(rows), []
    for world, words in _SHORT.items():
        found = cells[world]
        runner_up = max((label for label in found if label != OURS), key=lambda label: found[label].mean)
        name, bracket, options = runner_up.partition("(")
        most = max(round(row.mean, 1) for row in found.values())
        shown = [
            f"**{row.mean:.1f}**" if round(row.mean, 1) == most else f"{row.mean:.1f}{'†' * bool(at_chance(row))}"
            for row in (found[label] for label in [*labels, runner_up, OURS])
        ]
        lines.append([words, *shown[:-2], f"{shown[-2]} {_TITLES.get(name, name)}{bracket}{options}", shown[-1]])
    return pipes([_TABLE, *(_TITLES[label] for label in labels), _BEST, f"`{OURS}`"], lines)


def with_table(readme: str, table: str) -> str:
    """The README with this table in place of its own."""
    return re.sub(rf"(?m)^\| {_TABLE} \|.*\n(\|.*\n)*", lambda _: table + "\n", readme)


def with_values(choose: str, rows: Sequence[Row]) -> str:
    """The page on choosing, with these values in its tables of worlds: a row ends its first cell with a world's name."""
    cells, best, heads = by_cell(rows), {world.name: world for world in standings(rows)}, list[str]()

    def filled_in(line: str) -> str:
        nonlocal heads
        first, *rest = [part.strip() for part in line.strip("|").split("|")]
        if first == "world":
            heads = [head.strip("`") for head in rest]
        name = first.rpartition(": `")[2].strip("`")
        if not line.startswith("|") or name not in best:
            return line
        world = best[name]
        others = [
            f"{world.best_mean:.1f} `{world.best}`" if head == _BEST else _marked(cells[name][head]) for head in heads
        ]
        return f"| {' | '.join([first, *others])} |"

    return "\n".join(map(filled_in, choose.split("\n")))


def _set_ups(worlds: Sequence[World]) -> Iterator[str]:
    """How clients train, for each data set and model, with the number of worlds."""
    found: Counter[tuple[str, ...]] = Counter()
    for world in worlds:
        made = set_up(world.name)
        local = (made.local.epochs, made.local.batch, made.local.optimizer["lr"])
        pixels = _PIXELS[made.data.scaling]
        found[
            tuple(map(str, (made.data.name, made.data.samples, pixels, made.model["name"], made.rounds, *local)))
        ] += 1
    heads = [
        "data",
        "training images used",
        "pixels",
        "model",
        "rounds",
        "local epochs",
        "batch",
        "SGD's rate",
        "worlds",
    ]
    yield pipes(heads, [[*one, str(count)] for one, count in found.items()])


def _repeating(rows: Sequence[Row]) -> Iterator[str]:
    """The command that repeats a row, and how long its runs took."""
    some = by_cell(rows).get(_REPEATED, {}).values()
    outcomes = [[one for one in row.outcomes.values() if one.status == "finished"] for row in some]
    times = [statistics.mean(one.seconds for one in ended) for ended in outcomes if ended]
    if times:
        machine = outcomes[0][0].made.machine.partition(",")[0]
        yield _REPEATING.format(_REPEATED, min(times), max(times), machine).rstrip()


def _leads(worlds: Sequence[World], rows: Sequence[Row]) -> Iterator[str]:
    planned = {row.cell.name: row.cell.seeds for row in rows}
    heads = ["world", "FedAvg", _BEST, OURS, "lead", "seeds", ""]
    lines = [
        [
            f"{about(world.name)} (`{world.name}`)",
            f"{world.usual:.1f}",
            f"{world.best_mean:.1f} `{world.best}`",
            f"{world.ours:.1f}",
            with_interval(world.lead),
            _of(len(world.seeds), planned[world.name]),
            world.standing,
        ]
        for world in worlds
    ]
    yield pipes(heads, lines)
    yield "![Accuracy of counterpoise and of every other method in every world](figures/worlds.svg)"
    yield filled(
        f"`{OURS}` is {counted(worlds)}, tied in {_how_many(worlds, 'tied')} and behind in {_how_many(worlds, 'behind')}. "
        f"In the median world it is {statistics.median(world.ours - world.usual for world in worlds):.1f} points above "
        "FedAvg. " + least(worlds)
    )
    if left := waiting(rows, by_cell(rows)):
        yield filled(f"Not run yet: {left}.")
    if few := waiting([row for row in rows if row.values], [world.name for world in worlds]):
        yield filled(f"Not counted, because some methods lack runs: {few}.")


def _of(seeds: int, planned: int) -> str:
    return str(seeds) if seeds >= planned else f"{seeds} of {planned}, the rest to run"


def _how_many(worlds: Sequence[World], word: str) -> str:
    return str(sum(world.standing == word for world in worlds) or "none")


def least(worlds: Sequence[World]) -> str:
    """The worst that happens."""
    behind = [-world.lead.difference for world in worlds if world.standing == "behind"]
    if behind:
        where = "one world, by" if len(behind) == 1 else f"{len(behind)} worlds, by at most"
        return f"It is behind in {where} {max(behind):.1f} points."
    lead = min(world.lead.difference for world in worlds)
    if lead < 0:
        return f"Where it is tied, it is below the best other method by at most {-lead:.1f} points."
    return f"Its smallest lead over the best other method is {lead:.1f} points."


def _not_best(worlds: Sequence[World], rows: Sequence[Row]) -> Iterator[str]:
    notes = {row.cell.name: row.cell.note for row in rows}
    behind = [world for world in worlds if not world.standing.startswith("best")]
    if behind:
        yield "## Where it is not best"
        for world in behind:
            words = f"{about(world.name)}: {world.standing}, {world.lead.difference:+.2g} against `{world.best}`."
            yield filled(f"{words} {notes[world.name]}".rstrip())


def with_standardised_pixels(rows: Sequence[Row], standard: Sequence[Row]) -> Iterator[str]:
    """The worlds with standardised pixels, beside the same methods with pixels from 0 to 1. Nothing without results."""
    cells, found, lines = by_cell(rows), by_cell(standard), []
    for now in standings(standard):
        same = {label: row for label, row in cells.get(now.name, {}).items() if label in found[now.name]}
        if then := stands(now.name, same):
            line = [now.name, f"{now.usual:.1f}", f"{now.best_mean:.1f} `{now.best}`", f"{now.ours:.1f}"]
            lines.append([*line, with_interval(now.lead), now.standing, with_interval(then.lead)])
    if lines:
        yield "## With standardised pixels"
        yield filled(
            'The same worlds with `data.scaling = "standard"` and nine of the other methods. The last column is the lead '
            f"over the same methods with pixels from 0 to 1. `{OURS}` is {standardised(standard)}."
        )
        yield pipes(["world", "FedAvg", _BEST, OURS, "lead", "", "lead with pixels 0 to 1"], lines)
        if lost := lost_runs(standard):
            yield filled(lost)
        if left := waiting(standard, [line[0] for line in lines]):
            yield filled(f"Not run yet, or not with every method: {left}.")
        yield "What was aimed at, in these worlds:"
        yield in_accuracy(standings(standard))


def standardised(standard: Sequence[Row]) -> str:
    """How our method stands with standardised pixels, in the words that other pages repeat."""
    worlds = standings(standard)
    below = [-world.lead.difference for world in worlds if not world.standing.startswith("best")]
    if not below:
        return counted(worlds)
    others = f"In the other {len(below)}" if len(below) > 1 else "In the other world"
    return f"{counted(worlds)}. {others} it is below the best other method by at most {max(below):.1f} points"


def every_method(rows: Sequence[Row]) -> Iterator[str]:
    """All means, with the runs that ended at chance."""
    cells = by_cell(rows)
    labels = list(dict.fromkeys(label for cell in cells.values() for label in cell))
    yield "## Every method"
    yield (
        f"In brackets: how many runs ended at chance (below {CHANCE:g} %; guessing has 10), how many diverged, and how many\n"
        "were made if some are still to run. Means include runs at chance, and no run that diverged. The table after this one\n"
        "has the other runs of the worlds in which only some ended at chance."
    )
    uneven = [f"`{name}`" for name, found in cells.items() if len({ended(row) for row in found.values()}) > 1]
    if uneven:
        yield filled(
            f"In {', '.join(uneven)} some methods have more seeds than others. All count here. The first table counts the "
            "seeds that the compared methods share, and leaves a world out until all of its methods have five."
        )
    yield matrix(cells, labels, lambda cell, label: _marked(cells[cell][label]))
    rest = [[name, label, *_rest(row)] for name, cell in cells.items() for label, row in cell.items() if _some(row)]
    yield pipes(["world", "method", "runs at chance", "mean of the others", "from", "to"], rest)


def _some(row: Row) -> bool:
    return 0 < at_chance(row) < len(row.values)


def _marked(row: Row) -> str:
    lost, away, runs = at_chance(row), diverged(row), ended(row)
    words = [f"{lost} of {runs}"] * bool(lost) + [f"{away} diverged"] * bool(away)
    words += [f"{runs} run{'s' * (runs > 1)} of {row.cell.seeds}"] * (runs < row.cell.seeds)
    return f"{row.mean:.1f}" + (f" ({', '.join(words)})" if words else "")


def _rest(row: Row) -> list[str]:
    others = [value for value in row.values.values() if value >= CHANCE]
    numbers = statistics.mean(others), min(others), max(others)
    return [f"{at_chance(row)} of {len(row.values)}", *(f"{number:.1f}" for number in numbers)]


if __name__ == "__main__":
    main()
