"""The pages of evidence are what the results say."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

import pytest
from worlds_aims import reached
from worlds_averaging import with_averaging
from worlds_parts import apart, each_part
from worlds_standing import by_cell, counted, standing, standings, stands
from worlds_tuning import against_tuned, ends, tuned

from counterpoise.studies.finding import found_in

ROOT = Path(__file__).parents[2]


def test_the_pages_of_evidence_are_what_the_results_say(tmp_path: Path) -> None:
    for script in ("evidence", "worlds"):
        subprocess.run([sys.executable, ROOT / f"studies/{script}.py", "--out", tmp_path], check=True)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.*")}
    there = {name: path.read_text() if (path := ROOT / "docs" / name).exists() else "" for name in made}
    assert there == made, "run `make evidence`"
    figures = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs/figures").glob("study-*.svg")}
    assert figures <= made.keys(), "the figures of studies that are gone"


def row(cell: str, label: str, *values: float, runs_of: str = "") -> Any:
    mean = sum(values) / len(values) if values else float("nan")
    found = dict(enumerate(values))
    of = Namespace(name=cell, runs_of=runs_of, seeds=len(values))
    return Namespace(cell=of, entry=Namespace(label=label), values=found, mean=mean, outcomes={})


def cells_of(table: str) -> list[list[str]]:
    """The lines of a Markdown table, without its head."""
    return [[one.strip() for one in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_a_world_is_best_tied_or_behind_by_the_paired_difference_to_the_best_other() -> None:
    cells: dict[str, list[tuple[float, ...]]] = {
        "ahead": [(80, 81, 82, 83, 84), (81, 83, 82, 85, 84)],  # by 1, 2, 0, 2, 0
        "tied": [(80, 81, 82, 83, 84), (80.1, 80.6, 82, 82.9, 84.1)],  # by .1, -.4, 0, -.1, .1
        "behind": [(80, 81, 82, 83, 84), (79, 80.5, 81, 82.5, 83)],
        "few": [(80, 81), (90, 91)],
    }
    rows = [row(cell, "fedavg", *(v - 9 for v in best)) for cell, (best, _) in cells.items()]
    rows += [row(cell, "fedadam", *best) for cell, (best, _) in cells.items()]
    rows += [row(cell, "counterpoise", *ours) for cell, (_, ours) in cells.items()]
    rows += [row("ahead, honest left out", "counterpoise", 1, 1, runs_of="ahead"), row("without us", "fedavg", 1, 2)]
    found = {name: stands(name, some) for name, some in by_cell(rows).items()}
    assert [name for name, world in found.items() if world is None] == ["few", "without us"]
    assert {name: world.standing for name, world in found.items() if world} == {
        "ahead": "best, within noise",
        "tied": "tied",
        "behind": "behind",
    }
    ahead = found["ahead"]
    assert (ahead.usual, ahead.best, ahead.best_mean, ahead.ours) == (73, "fedadam", 82, 83)
    half = 2.7764451 * 1 / 5**0.5  # five differences of deviation 1
    assert (ahead.lead.difference, ahead.lead.low, ahead.lead.high) == pytest.approx((1, 1 - half, 1 + half))


@pytest.mark.parametrize(
    ("difference", "low", "high", "word"),
    [
        (0.2, 0.1, 0.3, "best"),
        (0.0, -2, 2, "best, within noise"),
        (0.1, 0, 0.2, "best, within noise"),
        (-0.1, -0.9, 0, "tied"),
        (-0.1, -1, 0.8, "behind"),
        (-0.1, -0.2, -0.01, "behind"),
    ],
)
def test_noise_holds_zero_and_so_does_a_tie_which_lies_above_minus_one(
    difference: float, low: float, high: float, word: str
) -> None:
    lead = Namespace(difference=difference, low=low, high=high)
    assert standing(lead) == word


def test_each_family_is_tuned_to_its_best_value_in_each_world() -> None:
    rows = [row("a", "fedadam(lr=0.1)", 80, 82), row("a", "fedadam(lr=0.3)", 70, 99), row("a", "feddyn(alpha=1)", 1)]
    made = tomllib.loads(tuned([*rows, row("b", "fedadam(lr=0.1)", 5)]))
    assert [(cell["name"], cell["like"], cell["methods"]) for cell in made["cell"]] == [
        ("a", "worlds/a", ["fedadam(lr=0.3)", "feddyn(alpha=1)"]),
        ("b", "worlds/b", ["fedadam(lr=0.1)"]),
    ]
    assert made["seeds"] == 5


def test_means_are_over_the_seeds_that_the_lead_is_over() -> None:
    rows = [row("a", "fedavg", *[60.0] * 10), row("a", "fedadam", *[70.0] * 5, *[10.0] * 5)]
    rows += [row("a", "feddyn", 61, 62, 63, 64, 65), row("a", "counterpoise", *[80.0, 81, 82, 83, 84], *[99.0] * 5)]
    found = stands("a", by_cell(rows)["a"])
    assert (found.best, found.seeds) == ("feddyn", [0, 1, 2, 3, 4])
    assert (found.usual, found.best_mean, found.ours, found.lead.difference) == (60, 63, 82, 19)


def test_a_best_within_noise_is_counted_apart() -> None:
    words = ["best", "best, within noise", "tied", "behind", "best"]
    made = [Namespace(standing=word) for word in words]
    assert counted(made) == "best in 3 of 5 worlds (in 1 of them within noise)"


def test_what_pages_say_of_the_count_is_what_the_study_found() -> None:
    found = counted(standings(found_in(ROOT / "studies/worlds.toml").rows))
    for page in ("README.md", "docs/methods/counterpoise.md", "docs/worlds.md"):
        assert found in " ".join((ROOT / page).read_text().split()), page


def test_the_readme_gets_the_table_and_keeps_the_rest() -> None:
    worlds = runpy.run_path(str(ROOT / "studies/worlds.py"))
    head = "| Fashion-MNIST, LeNet-5, 100 rounds | FedAvg |"
    before = f"# Us\n\n{head}\n| --- |\n| old | 1 |\n\nWords.\n\n| another |\n"
    assert worlds["with_table"](before, f"{head}\n| new |") == f"# Us\n\n{head}\n| new |\n\nWords.\n\n| another |\n"


def test_runs_that_ended_at_chance_are_marked_and_the_others_told() -> None:
    worlds = runpy.run_path(str(ROOT / "studies/worlds.py"))
    rows = [row("a", "fedavg", 80, 82), row("a", "scaffold", 10.99, 60, 11), row("a", "feddyn", 10, 10)]
    *_, means, rest = worlds["every_method"](rows)
    assert cells_of(means) == [["a", "81.0", "27.3 (1 of 3)", "10.0 (2 of 2)"]]
    assert cells_of(rest) == [["a", "scaffold", "1 of 3", "35.5", "11.0", "60.0"]]


def test_runs_that_diverged_and_runs_still_to_do_are_marked() -> None:
    worlds = runpy.run_path(str(ROOT / "studies/worlds.py"))
    lost, partly = row("a", "fedavg", 80, 82, 10), row("a", "rfa", 70)
    lost.outcomes = {seed: Namespace(status="diverged" if seed > 2 else "finished") for seed in range(5)}
    lost.cell.seeds = partly.cell.seeds = 5
    assert worlds["_marked"](lost) == "57.3 (1 of 5, 2 diverged)"  # five ended: three have values
    assert worlds["_marked"](partly) == "70.0 (1 run of 5)"
    _, _, uneven, *_ = worlds["every_method"]([lost, partly])
    assert uneven.startswith("In `a` some methods have more seeds than others.")


def test_how_far_the_same_seeds_differ_between_two_studies() -> None:
    first = [row("a", "counterpoise", 80, 82, 84, 99), row("b", "counterpoise", 50, 50), row("c", "counterpoise", 1)]
    again = [row("a", "counterpoise", 81, 80, 84), row("b", "counterpoise", 51, 50.5), row("d", "counterpoise", 9)]
    first, again = [*first, row("f", "counterpoise", 70)], [*again, row("f", "counterpoise", 70)]
    assert apart(first, again) == (["a", "b"], 2, 0.75)  # a: +1, -2, 0; b: +1, +0.5
    assert apart(first, first) == ([], 0, 0)
    lost = [row("e", "counterpoise", 30, 30)], [row("e", "counterpoise", 31, 10)]
    assert apart([*first, *lost[0]], [*again, *lost[1]]) == (["a", "b"], 2, 0.75)  # luck, not rounding


def test_the_tables_for_choosing_get_the_values_and_keep_their_words() -> None:
    worlds = runpy.run_path(str(ROOT / "studies/worlds.py"))
    rows = [row("a", "fedavg", *[60.0] * 5), row("a", "rfa", *[70.0] * 5), row("a", "counterpoise", 10, 80, 80, 80, 80)]
    before = "Words: `a`\n\n| world | `rfa` | best other | `counterpoise` |\n|---|---|---|---|\n| x: `a` | 1 | 2 | 3 |\n| y: `b` | 4 |\n"
    after = before.replace("1 | 2 | 3", "70.0 | 70.0 `rfa` | 66.0 (1 of 5)")
    assert worlds["with_values"](before, rows) == after
    assert worlds["with_values"](after, rows) == after


def test_standardised_pixels_have_a_part_of_the_page_once_there_are_results() -> None:
    worlds = runpy.run_path(str(ROOT / "studies/worlds.py"))
    world = "fmnist-iid"
    unit = [row(world, "fedavg", 60, 60, 61, 61, 62), row(world, "counterpoise", 80, 80, 81, 81, 82.5)]
    unit += [row(world, "mifa", *[79.0] * 5)]  # not in the other study, so that it does not count beside it
    standard = [row(world, "fedavg", 70, 70, 71, 71, 72), row(world, "counterpoise", 72, 73, 74, 73, 74)]
    assert list(worlds["with_standardised_pixels"](unit, [row(world, "fedavg"), row(world, "counterpoise")])) == []
    title, _, table, _, aims = worlds["with_standardised_pixels"](unit, standard)
    assert title == "## With standardised pixels"
    assert cells_of(table) == [
        [world, "70.8", "70.8 `fedavg`", "73.2", "+2.4 (+1.7 to +3.1)", "best", "+20.1 (+19.8 to +20.4)"]
    ]
    assert cells_of(aims)[0][2:] == ["best in 1 of 1 worlds (in 0 of them within noise), tied in none", "yes"]
    lost = row(world, "fedprox", 60)
    lost.outcomes = {seed: Namespace(status="diverged" if seed else "finished") for seed in range(5)}
    _, _, _, told, *_ = worlds["with_standardised_pixels"](unit, [*standard, lost])
    assert told == "Runs that diverged, and count in no mean: `fedprox` 4."


def test_averaged_models_are_compared_with_averaged_models_and_with_the_same_seeds_unaveraged() -> None:
    rows = [row("a", "fedavg", *[60.0] * 5), row("a", "rfa", *[70.0] * 5), row("a", "counterpoise", *[80.0] * 5, 99)]
    standard = [row("a", "fedavg", 50, 51, 52, 53, 54), row("a", "counterpoise", *[82.0] * 5)]
    averaged = [row("a", "averaged:fedavg", *[66.0] * 5), row("a", "averaged:rfa", *[73.0] * 5)]
    averaged += [row("a", "counterpoise(averaged=10)", 80, 81, 82, 83, 84), row("b", "averaged:fedavg", 1)]
    averaged += [row("standardised a", "averaged:fedavg", 53, 54, 55, 56, 57)]
    averaged += [row("standardised a", "counterpoise(averaged=10)", *[52.0] * 5)]
    _, words, table, left = with_averaging(rows, standard, averaged)
    assert "best in 1 of 2 worlds" in words
    assert left == "Not run yet, or not with every method: `b`."
    fewer = with_averaging(rows, standard, [*averaged, row("a", "averaged:mifa", 90, 90)])
    assert "best in 0 of 1 worlds" in [*fewer][1]
    assert table.startswith("| world, all averaged | fedavg | rfa | counterpoise | lead |")
    assert [[*line[:4], line[4][:4], line[5]] for line in cells_of(table)] == [
        ["a", "66.0 (+6.0)", "73.0 (+3.0)", "82.0 (+2.0)", "+9.0", "best"],
        ["standardised a", "55.0 (+3.0)", "", "52.0 (-30.0)", "-3.0", "behind"],
    ]
    assert not list(with_averaging(rows, standard, averaged[:1]))


def test_how_it_stands_with_standardised_pixels_is_told_in_a_sentence_or_two() -> None:
    worlds = runpy.run_path(str(ROOT / "studies/worlds.py"))
    others = [row(cell, label, *[value] * 5) for cell in "ab" for label, value in (("fedavg", 65), ("rfa", 71))]
    standard = [*others, row("a", "counterpoise", 69.5, 70, 70.5, 71, 71.5), row("b", "counterpoise", *range(80, 85))]
    assert worlds["standardised"](standard) == (
        "best in 1 of 2 worlds (in 0 of them within noise). In the other world it is below the best other method by at most 0.5 points"
    )
    standard += [row("c", "fedavg", *[65.0] * 5), row("c", "counterpoise", *[63.0] * 5)]
    assert worlds["standardised"](standard).endswith(
        "In the other 2 it is below the best other method by at most 2.0 points"
    )
    assert worlds["standardised"]([*others, row("b", "counterpoise", *range(80, 85))]) == (
        "best in 1 of 1 worlds (in 0 of them within noise)"
    )


def test_what_pages_say_of_standardised_pixels_is_what_was_found() -> None:
    worlds = runpy.run_path(str(ROOT / "studies/worlds.py"))
    found = worlds["standardised"](found_in(ROOT / "studies/worlds-standard.toml").rows)
    for page in ("README.md", "docs/choose.md", "docs/methods/counterpoise.md"):
        assert found in " ".join((ROOT / page).read_text().split()), page


def test_values_chosen_at_an_end_of_those_measured_are_counted() -> None:
    rows = [row("a", f"fedadam(lr={lr})", value) for lr, value in [(0.003, 1), (0.01, 2), (0.03, 3)]]
    rows += [row("a", "fedadam(lr=0.1)"), row("a", "feddyn(alpha=0.3)", 1), row("a", "feddyn(alpha=0.03)", 2)]
    rows += [row("b", f"fedadam(lr={lr})", value) for lr, value in [(0.003, 1), (0.01, 9), (0.03, 3)]]
    rows += [row("b", "feddyn(alpha=0.3)", 1), row("b", "feddyn(alpha=0.03)", 2)]
    rows += [row("c", "feddyn(alpha=0.3)", 10), row("c", "feddyn(alpha=0.03)", 10.04)]  # all as good: none is chosen
    assert ends(rows) == {("fedadam", "largest"): 1, ("feddyn", "smallest"): 2}


def test_tuned_baselines_are_beside_those_at_their_defaults_over_the_same_seeds() -> None:
    ours = [90.0, 91, 92, 93, 94]
    rows = [
        row("a", "fedavg", *[60.0] * 5),
        row("a", "rfa", 80, 80, 80, 80, 80, 99),
        row("a", "counterpoise", *ours, 0),
    ]
    best = [row("a", "fedadam(lr=0.1)", 79, 79.5, 79, 79, 79), row("a", "feddyn(alpha=1)", *[70.0] * 5)]
    sweep = [row("a", "fedadam(lr=0.1)", 3), row("a", "fedadam(lr=0.01)", 2), row("a", "fedadam(lr=1)")]
    sweep += [row("elsewhere", "fedadam(lr=0.1)", 1), row("elsewhere", "fedadam(lr=0.01)", 2)]
    _, _, table, words = against_tuned(rows, best, sweep)
    ((_, chosen, default, found, lead, word),) = cells_of(table)
    assert (chosen, default, found, lead[:5], word) == ("79.1 `fedadam(lr=0.1)`", "80.0 `rfa`", "92.0", "+12.9", "best")
    words = " ".join(words.split())
    assert "is below the best method at its defaults, which was not tuned in 1 of them (`rfa` in `a`). In the" in words
    assert words.startswith("In 1 of 1 worlds the best tuned method is below")
    assert "in these 1 worlds, the one chosen was the largest for FedAdam in 1." in words
    assert words.endswith("Not measured yet: `fedadam(lr=1)`.")


def made_world(name: str, usual: float, ours: float, lead: float, word: str = "best") -> Any:
    return Namespace(name=name, usual=usual, ours=ours, lead=Namespace(difference=lead), standing=word)


def test_what_was_aimed_at_is_beside_what_was_found() -> None:
    made = [
        made_world("fmnist-dir01", 70, 80, 4),
        made_world("fmnist-stragglers", 70, 72, 1),
        made_world("fmnist-iid", 10, 90, 4, "best, within noise"),  # without skew
        made_world("fmnist-quantity", 10, 90, 4),  # differs in size alone
        made_world("fmnist-full-momentum", 10, 90, -0.5, "tied"),  # asks every client
        made_world("cifar10-lq2", 30, 33, 2),
        made_world("fmnist-scaled", 70, 90, 2),
        made_world("fmnist-claims", 70, 90, 0.5),
        made_world("cifar10-sign-flips", 70, 90, -1.5, "behind"),
    ]
    rows = [row("fmnist-iid, honest left out", "counterpoise", 0.1, 1.5, runs_of="fmnist-iid")]
    rows += [row("fmnist-dir01, honest left out", "counterpoise", 0.2, 0.2, runs_of="fmnist-dir01")]
    rows += [row("fmnist-rare, honest left out", "counterpoise", 7, 7, runs_of="fmnist-rare")]  # too few runs to stand
    rows += [row("fmnist-claims, honest left out", "counterpoise", 9, 9, runs_of="fmnist-claims")]  # not honest
    *_, table = reached(made, rows)
    found = [(value, fine) for _, _, value, fine in cells_of(table)]
    assert found[:8] == [
        ("best in 7 of 9 worlds (in 1 of them within noise), tied in 1", "yes"),
        ("1.5 points in `cifar10-sign-flips`; 0.5 points in `fmnist-full-momentum`", "no"),
        ("6.0 points (`fmnist-dir01` 10.0, `fmnist-stragglers` 2.0)", "yes"),
        ("3.0 points (`cifar10-lq2` 3.0)", "no"),
        ("0.5 points at least, 1.2 in the mean", "no"),
        ("-1.5 points at least, 0.3 in the mean", "no"),
        (
            "0.80 % in `fmnist-iid`, the most of any world; in the worst runs 1.5 % in `fmnist-iid` and 0.2 % in `fmnist-dir01`",
            "no",
        ),
        ("not counted yet", ""),
    ]
    for often, told in (
        (2.0, ("some in 1 of 1 worlds; most in `fmnist-iid`: 1.00 % of its honest clients", "no")),
        (0.0, ("none", "yes")),
    ):
        twice = row("fmnist-iid, honest left out twice", "counterpoise", 0, often, runs_of="fmnist-iid")
        *_, table = reached(made, [*rows, twice])
        assert tuple(cells_of(table)[7][2:]) == told


def test_times_count_as_reached_only_if_raw_times_were_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worlds_aims.BENCHMARKS", tmp_path)
    names = ["methods-cuda-counterpoise.json", "methods-cpu-counterpoise-batched.json"]
    asked = {"clients": 100, "a round": 10}
    for name, time, more in zip(names, (1.31, 1.1), ({}, asked), strict=True):
        (tmp_path / name).write_text(json.dumps({"methods": {"counterpoise": {"time": time}}, **more}))
    *_, table = reached([made_world("fmnist-scaled", 70, 90, 2)], [])
    assert [line[1:] for line in cells_of(table) if "time" in line[0]] == [
        ["at most 1.3", f"1.31 (`benchmarks/results/{names[0]}`)", "no"],
        ["at most 1.1", f"1.10 (10 of 100 clients; `benchmarks/results/{names[1]}`)", "yes"],
        ["at most 1.15", "measured once; the raw times were not kept", ""],
    ]


def test_worlds_that_were_not_run_are_named() -> None:
    worlds = runpy.run_path(str(ROOT / "studies/worlds.py"))
    rows = [row("fmnist-iid", "fedavg", 1, 2, 3, 4, 5), row("fmnist-iid", "counterpoise", 2, 3, 4, 5, 6)]
    rows += [row("cifar10-lq2", "fedavg"), row("cifar10-lq2", "counterpoise")]
    rows += [row("cifar10-lq2, honest left out", "counterpoise", runs_of="cifar10-lq2")]
    rows += [row("fmnist-rare", "fedavg", *range(5)), row("fmnist-rare", "counterpoise", *range(5))]
    rows += [row("fmnist-rare", "mifa", 1, 2)]
    for one in rows:
        one.cell.seeds = 5
    *_, not_run, few = worlds["_leads"](standings(rows), rows)
    assert (not_run, few) == (
        "Not run yet: `cifar10-lq2`.",
        "Not counted, because some methods lack runs: `fmnist-rare`.",
    )
    *_, last = against_tuned(rows, [row("fmnist-iid", "fedadam(lr=0.1)", 1, 1, 1, 1, 1)], [])
    assert last == "Not tuned yet: `cifar10-lq2`, `fmnist-rare`."
    assert not any("ot run yet" in part for part in worlds["_leads"](standings(rows[:2]), rows[:2]))


def test_a_form_without_runs_is_a_gap_in_the_table_and_named() -> None:
    rows = [row("a", "counterpoise", 80, 81)]
    forms = [row("a", "counterpoise", 80, 81), row("a", "unclipped"), row("a", "unbounded", 79, 80)]
    forms += [row("b", "counterpoise"), row("b", "unclipped"), row("b", "unbounded")]
    *_, table, idle, left = each_part(rows, forms)
    assert table.startswith("| world | counterpoise | unclipped | unbounded |")
    assert cells_of(table) == [["a", "80.5", "", "-1.0"]]
    assert (idle, left) == ("Not run yet: *unclipped*.", "Not run yet on `b`.")
    forms[1:2] = [row("c", "counterpoise", 80, 81), row("c", "unclipped", 80, 81)]
    *_, gap, _ = each_part(rows, forms)
    assert gap == "Not run yet with every form: `a`, `c`."


@pytest.mark.parametrize(
    ("leads", "words"),
    [
        ([("best", 2.0), ("behind", -18.0)], "It is behind in one world, by 18.0 points."),
        ([("behind", -1.5), ("behind", -18.0)], "It is behind in 2 worlds, by at most 18.0 points."),
        ([("best", 2.0), ("tied", -0.3)], "Where it is tied, it is below the best other method by at most 0.3 points."),
        ([("best", 2.0), ("best", 0.4)], "Its smallest lead over the best other method is 0.4 points."),
    ],
)
def test_the_worst_is_told_with_the_number_of_worlds(leads: list[tuple[str, float]], words: str) -> None:
    made = [made_world("a", 0, 0, lead, word) for word, lead in leads]
    assert runpy.run_path(str(ROOT / "studies/worlds.py"))["least"](made) == words


def test_the_note_on_the_world_that_is_lost_counts_the_runs_that_recover() -> None:
    world = "cifar10-full-momentum"
    (note, *_) = {row.cell.note for row in found_in(ROOT / "studies/worlds.toml").rows if row.cell.name == world}
    values = [
        value
        for row in by_cell(found_in(ROOT / "studies/worlds.toml").rows)[world].values()
        for value in row.values.values()
    ]
    assert f"Of {len(values)} runs {sum(value >= 11 for value in values)} recover" in note.replace("\n", " ")
    served = by_cell(found_in(ROOT / "studies/worlds-ablation.toml").rows)[world]["all on the server"].values.values()
    assert (len(served), sum(value >= 11 for value in served)) == (5, 3)
    assert "three of five recovered" in note.replace("\n", " ")


def test_runs_that_name_no_commit_are_counted() -> None:
    evidence = runpy.run_path(str(ROOT / "studies/evidence.py"))

    def finding(title: str, *commits: str) -> Any:
        outcomes = {seed: Namespace(made=Namespace(commit=name)) for seed, name in enumerate(commits)}
        one = Namespace(parts=(), cell=Namespace(runs_of=""), cannot="", outcomes=outcomes)
        view = Namespace(parts=(), cell=Namespace(runs_of="it"), cannot="", outcomes=outcomes)
        return Namespace(study=Namespace(title=title), rows=[one, view])

    told = evidence["told_commits"]
    assert told([finding("A", "bd22db4")]) == "Every run names the commit of the code that made it."
    assert told([finding("A", "bd22db4", "main"), finding("B", "main", "bd22db4-dirty"), finding("C", "594cf05")]) == (
        "Runs name the commit of the code that made them, except 1 of *A*, 2 of *B*. Some of these say `bd22db4-dirty`: "
        "files were changed after that commit. Others say `main`: their commit is unknown."
    )
    assert told([finding("A", "", "main")]).endswith("These say nothing, `main`: their commit is unknown.")
    for found in ([finding("A", "f323cf7", "f323cf7")], [finding("A", "main"), finding("B", "f323cf7")]):
        assert told(found).count("`f323cf7` is not in the history. The code found beside its results is that of") == 1
