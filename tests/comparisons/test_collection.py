"""Runs on disk: found, read however they ended, named apart; and the plan that a comparison keeps."""

from __future__ import annotations

import io
import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kept import do, keep
from scipy import stats

import counterpoise as cp
from counterpoise.choices import parse_choice, split
from counterpoise.comparisons.arms import compared, short_keys, swept
from counterpoise.comparisons.collection import collect, groups, labels, of_plan, read_run, run_folders
from counterpoise.comparisons.conduct import open_pieces
from counterpoise.comparisons.plan import Arm, Plan, read_plan, slugs, write_plan
from counterpoise.comparisons.ranking import reached, verdict
from counterpoise.comparisons.standing import stand
from counterpoise.comparisons.tables import as_csv, as_latex, as_markdown, as_plain, columns, own_columns
from counterpoise.comparisons.worker import display_metrics, failure
from counterpoise.errors import CounterpoiseError
from counterpoise.measures import COLUMNS, paired
from counterpoise.memory import bytes_in_words
from counterpoise.reports.chart import Table
from counterpoise.reports.report import sections
from counterpoise.reports.study import study
from counterpoise.runs.contents import FAILURE


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of fedavg and of two kinds of fedprox."""
    folder = tmp_path_factory.mktemp("kept")
    for name, method in (
        ("a", cp.methods.fedavg()),
        ("b", cp.methods.fedprox(mu=0.1)),
        ("c", cp.methods.fedprox(mu=1.0)),
    ):
        for seed in (0, 1):
            fed = cp.load("digits", partition=cp.dirichlet(0.5, clients=4), seed=seed)
            cp.simulate(method, fed, model=cp.models.linear, rounds=3, seed=seed, out=folder / "deep" / f"{name}{seed}")
    return folder


@pytest.fixture
def one(kept: Path, tmp_path: Path) -> Path:
    """A copy of one run to damage."""
    for path in (kept / "deep/a0").rglob("*"):
        copy = tmp_path / "one" / path.relative_to(kept / "deep/a0")
        if path.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    return tmp_path / "one"


def test_runs_are_found_at_any_depth_in_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("x/seed-10", "x/seed-9", "x"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "config.toml").touch()
    (tmp_path / "x/seed-9" / FAILURE).touch()
    assert [p.relative_to(tmp_path).as_posix() for p in run_folders([tmp_path])] == ["x", "x/seed-9", "x/seed-10"]
    with pytest.raises(cp.CounterpoiseError, match=r"There is no folder .*nowhere\."):
        run_folders([tmp_path / "nowhere"])


def test_a_run_is_read_as_it_was_written(kept: Path) -> None:
    run = read_run(kept / "deep/b1")
    again = cp.resume(kept / "deep/b1")
    assert list(run.records) == again.rounds
    assert (run.method, run.data, run.seed, run.rounds, run.status, run.sentence) == (
        "fedprox",
        "digits",
        1,
        3,
        "finished",
        "",
    )


def test_groups_hold_the_seeds_of_one_thing_and_are_told_apart_by_what_differs(kept: Path) -> None:
    found = collect([kept])
    assert [group.label for group in found] == ["fedavg", "fedprox(mu=0.1)", "fedprox(mu=1.0)"]
    assert [[run.seed for run in group.runs] for group in found] == [[0, 1]] * 3
    assert [group.label for group in collect([kept / "deep/a0", kept / "deep/b0"])] == ["fedavg", "fedprox"]


def test_of_two_runs_of_one_seed_the_later_counts(kept: Path, one: Path) -> None:
    for path in one.glob("*.jsonl"):
        os.utime(path, (1, 1))
    early, late = read_run(one), read_run(kept / "deep/a0")
    for order in ([early, late], [late, early]):
        (group,) = groups(order)
        assert group.runs == (late,)


def test_a_torn_line_ends_what_is_read(one: Path) -> None:
    text = (one / "metrics.jsonl").read_text()
    (one / "metrics.jsonl").write_text(text[:-10])
    assert [record.round for record in read_run(one).records] == [1, 2]
    assert read_run(one).status == "stopped"  # so that round 2 does not pass for its last


def test_an_older_schema_is_read_for_what_it_holds(one: Path) -> None:
    lines = [json.loads(line) for line in (one / "metrics.jsonl").read_text().splitlines()]
    for line in lines[1:]:
        for name in ("bytes_server", "bytes_clients", "memory"):
            del line[name]
    lines[0]["schema"] = 0
    (one / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    (one / "clients.jsonl").unlink()
    (one / "config.toml").write_text('method = "fedavg"\ndata = "digits"\n')
    run = read_run(one)
    assert [record.metrics["accuracy"] for record in run.records] == [line["accuracy"] for line in lines[1:]]
    assert (run.method, run.data, run.seed) == ("fedavg", "digits", 0)
    assert groups([run])[0].label == "fedavg"


def test_a_newer_schema_is_refused(one: Path) -> None:
    (one / "metrics.jsonl").write_text('{"schema": 99}\n')
    with pytest.raises(cp.CounterpoiseError, match="written by a newer version"):
        read_run(one)


@pytest.mark.parametrize(("status", "sentence"), [("diverged", "It diverged after round 3."), ("stopped", "")])
def test_how_it_ended(one: Path, status: str, sentence: str) -> None:
    index = one / "checkpoint/checkpoint.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"status": status}))
    assert (read_run(one).status, read_run(one).sentence) == (status, sentence)
    (one / FAILURE).write_text("The lr is too high.\nTraceback ...")
    assert read_run(one).sentence == "The lr is too high."
    index.unlink()
    (one / FAILURE).unlink()
    assert read_run(one).status == "interrupted"


def test_labels_differ_wherever_identities_do() -> None:
    base = {"method.name": "fedprox", "method.mu": 0.1, "local.epochs": 1}
    found = labels([base, base | {"local.epochs": 2}, base | {"method.mu": 0.2}])
    assert found == [
        "fedprox(mu=0.1, local.epochs=1)",
        "fedprox(mu=0.1, local.epochs=2)",
        "fedprox(mu=0.2, local.epochs=1)",
    ]


# ---------------------------------------------------------------- plans


def test_commas_within_brackets_and_quotes_do_not_divide() -> None:
    assert split("a(x=1, y=[2, 3]), 'b,c', {d = 1, e = 2}") == ["a(x=1, y=[2, 3])", "'b,c'", "{d = 1, e = 2}"]
    assert parse_choice("scaffold(weights=data, lr=0.5)") == {"name": "scaffold", "weights": "data", "lr": 0.5}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a(x=1):b(x=2)", "The option x is given twice"),
        ("a(name=b)", "The option name is given twice"),
        ("a(x=1", "is neither a name"),
        ("a::b", "is neither a name"),
        ("a(x=1)b", "is neither a name"),
    ],
)
def test_options_in_brackets_that_cannot_be_read_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(cp.CounterpoiseError, match=sentence):
        parse_choice(text)


def test_methods_with_a_blank_between_them_are_told_of_the_comma() -> None:
    for text in ("fedavg fedprox", "fedavg fedprox(mu=0.1, lr=1)", "fedavg; fedprox"):
        with pytest.raises(cp.CounterpoiseError, match=r"is not one method\. Separate methods by commas"):
            plan(methods=[text])
    for text, sentence in (("fedprox(mu=1, mu=2)", "mu is given twice"), ("feddua::fedavg", "is neither a name")):
        with pytest.raises(cp.CounterpoiseError, match=sentence):
            plan(methods=[text])
    assert [arm.label for arm in plan(methods=["feddua : fedprox (mu=0.1)"]).arms] == ["feddua:fedprox(mu=0.1)"]


def test_slugs_are_plain_and_no_two_alike() -> None:
    found = slugs(["a:b", "a-b", "a - b", "../../x", ""])
    assert found == ["a-b", "a-b_2", "a-b_3", "x", "arm"]
    assert slugs(["lr=1e-20", "lr=1e+20", "lr=-1"]) == ["lr=1e-20", "lr=1e+20", "lr=-1"]
    long = slugs(["x" * 300 + "y", "x" * 300 + "z"])
    assert max(map(len, long)) <= 255
    assert len({*long}) == 2


def plan(**more: Any):
    given = {"methods": ["fedavg", "fedprox(mu=0.1)"], "settings": [], "seeds": 2, "rounds": 2, "command": "it"} | more
    return compared("quickstart", **given)


def test_a_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    made = plan(settings=["seed=5", "local.epochs=1"])
    write_plan(tmp_path, made)
    assert read_plan(tmp_path) == made
    assert made.seeds == (5, 6)
    assert made.baseline == "fedavg"
    pieces = list(made.pieces(made.arms[1]))
    assert [(p.place, p.values["seed"], p.values["method"]) for p in pieces] == [
        ("fedprox-mu=0.1/seed-5", 5, {"name": "fedprox", "mu": 0.1}),
        ("fedprox-mu=0.1/seed-6", 6, {"name": "fedprox", "mu": 0.1}),
    ]


@pytest.mark.parametrize("slug", ["..", "a/b", ""])
def test_a_plan_that_leads_out_of_its_folder_is_refused(tmp_path: Path, slug: str) -> None:
    write_plan(tmp_path, plan())
    path = tmp_path / "compare.toml"
    path.write_text(path.read_text().replace('slug = "fedprox-mu=0.1"', f'slug = "{slug}"'))
    with pytest.raises(cp.CounterpoiseError, match="slug"):
        read_plan(tmp_path)


def test_settings_of_the_preset_hold_for_its_own_method_and_those_set_for_all_that_have_them() -> None:
    made = compared("feddua/figure-4-cifar10", ["feddua:fedavg", "fedprox", "fedavg"], ["method.lr=0.5"], 1, None, "")
    assert [arm.settings["method"] for arm in made.arms] == [
        {"name": "feddua:fedavg", "paper": True, "lr": 0.5},
        {"name": "fedprox", "lr": 0.5},
        {"name": "fedavg", "lr": 0.5},
    ]
    assert [arm.label for arm in made.arms] == [
        "feddua:fedavg(paper=true, lr=0.5)",
        "fedprox(lr=0.5)",
        "fedavg(lr=0.5)",
    ]
    assert made.baseline == "fedavg(lr=0.5)"
    assert len(compared("feda4/table-1-fmnist", [], [], 1, None, "").arms) == 4  # the paper's own


def test_options_that_a_file_sets_to_their_defaults_are_in_no_label(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"  # `presets NAME --toml` writes all options
    file.write_text('like = "quickstart"\nmethod = { name = "counterpoise", power = 0.5, gate = true, pace = 6.0 }\n')
    made = compared(str(file), ["fedavg", "counterpoise", "counterpoise(power=0.5)"])
    assert [arm.label for arm in made.arms] == [
        "fedavg",
        "counterpoise(pace=6.0)",
        "counterpoise(pace=6.0, power=0.5)",  # as it was typed
    ]
    file.write_text('like = "quickstart"\nmethod = { name = "fedprox", mu = 0.01 }\n')
    assert compared(str(file), []).arms[0].label == "fedprox"


def test_the_options_of_a_source_reach_its_method_inside_another_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('like = "quickstart"\nmethod = { name = "feddua:fedprox", mu = 0.5, lr = 0.5, patience = 9 }\n')
    asked = ["fedprox(lr=1)", "feddua:fedprox", "memory:fedprox(mu=2)", "feddua:fedavg", "fedavgm"]
    made = compared(str(file), asked, baseline="fedavgm")
    assert [arm.settings["method"] for arm in made.arms] == [
        {"name": "fedprox", "mu": 0.5, "lr": 1.0},
        {"name": "feddua:fedprox", "mu": 0.5, "lr": 0.5, "patience": 9},
        {"name": "memory:fedprox", "mu": 2.0, "lr": 0.5},
        {"name": "feddua:fedavg", "patience": 9},
        {"name": "fedavgm"},
    ]
    assert [arm.label for arm in made.arms] == [
        "fedprox(mu=0.5, lr=1.0)",
        "feddua:fedprox(mu=0.5, lr=0.5, patience=9)",
        "memory:fedprox(mu=2.0, lr=0.5)",
        "feddua:fedavg(patience=9)",
        "fedavgm",
    ]
    assert compared(str(file), asked, baseline="feddua:fedavg").baseline == "feddua:fedavg(patience=9)"
    with pytest.raises(cp.CounterpoiseError, match=r"The baseline must be one of fedprox\(mu=1"):
        compared(str(file), ["fedprox(mu=1)", "fedprox(mu=2)"], baseline="fedprox")


def test_a_plan_grows_by_arms_and_seeds_but_not_into_another_one() -> None:
    grown = plan().extended(plan(methods=["fedprox(mu=1)", "fedprox(mu=0.1)"], seeds=3))
    assert [(arm.label, arm.slug) for arm in grown.arms] == [
        ("fedavg", "fedavg"),
        ("fedprox(mu=0.1)", "fedprox-mu=0.1"),
        ("fedprox(mu=1.0)", "fedprox-mu=1.0"),
    ]
    assert grown.seeds == (0, 1, 2)
    with pytest.raises(cp.CounterpoiseError, match="rounds was 2 and is 3"):
        plan().extended(plan(rounds=3))


def test_labels_and_a_baseline_that_the_user_gives_a_second_time_count() -> None:
    prox, dyn = ({"method": {"name": name}} for name in ("fedprox", "feddyn"))
    before = Plan("compare", "it", "", (0,), (Arm("a", "a", prox), Arm("b", "b", dyn)), "a", {"rounds": 2})
    swapped = replace(before, arms=(Arm("b", "b", prox), Arm("a", "a", dyn)), baseline="a")

    def grown(**given: bool) -> tuple[list[tuple[str, str]], str]:
        found = before.extended(replace(swapped, **given))
        return [(arm.label, arm.slug) for arm in found.arms], found.baseline

    assert grown() == ([("a", "a"), ("b", "b")], "a")
    assert grown(named=True) == ([("b", "a"), ("a", "b")], "b")  # folders stay, and fedprox is still the baseline
    assert grown(chosen=True) == ([("a", "a"), ("b", "b")], "b")
    assert grown(named=True, chosen=True) == ([("b", "a"), ("a", "b")], "a")
    more = replace(before, arms=(Arm("a", "a", {"method": {"name": "fedavg"}}),), baseline="a", named=True)
    assert [(arm.label, arm.slug) for arm in before.extended(more).arms] == [
        ("fedprox", "a"),
        ("b", "b"),
        ("a", "a_2"),
    ]
    assert before.extended(more).baseline == "fedprox"
    strong = Arm("fedprox", "b", {"method": {"name": "fedprox", "mu": 1.0}})
    assert [arm.label for arm in replace(before, arms=(before.arms[0], strong)).extended(more).arms] == [
        *("fedprox", "fedprox(mu=1.0)", "a")
    ]
    own = [{"method": {"name": "own", "called": "b", "parts": parts}} for parts in "xyz"]
    for settings in own:
        before = before.extended(replace(before, arms=(Arm("b", "b", settings),)))
    assert [arm.label for arm in before.arms] == ["a", "b", "b (own)", "b (own) 2", "b (own) 3"]
    assert [arm.slug for arm in before.arms] == ["a", "b", "b-own", "b-own-2", "b-own-3"]


def test_a_sweep_that_grows_has_no_baseline() -> None:
    first, second = (swept("quickstart", [f"cohort={values}"], [], [], 1, None, "") for values in ("3,4", "5"))
    assert first.extended(second).baseline == ""


def test_a_sweep_is_a_grid_and_single_points() -> None:
    made = swept("quickstart", ["local.epochs=1,2", "cohort=3,4"], ["local.batch=8, cohort=5"], [], 1, None, "")
    assert [arm.label for arm in made.arms] == [
        "epochs=1, cohort=3",
        "epochs=1, cohort=4",
        "epochs=2, cohort=3",
        "epochs=2, cohort=4",
        "batch=8, cohort=5",
    ]
    (piece,) = made.pieces(made.arms[4])
    assert (piece.values["local"]["batch"], piece.values["cohort"]) == (8, 5)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("fedavg", "local.optimizer.lr"),
        ("fedprox(mu=1)", "local.optimizer.lr"),
        ({"name": "feddua:fedprox"}, "local.optimizer.lr"),
        ("no such", "lr"),
    ],
)
def test_a_setting_named_like_an_option_of_the_method_keeps_its_whole_key(method: Any, name: str) -> None:
    key = "local.optimizer.lr"
    assert short_keys([key, "method.mu"], [method]) == {key: name, "method.mu": "mu"}


def test_pieces_are_done_seed_by_seed_and_those_that_ended_are_left(tmp_path: Path) -> None:
    made = plan(settings=["data.partition.clients=4", "cohort=2"])
    assert [p.place for p in open_pieces(tmp_path, made)] == [
        "fedavg/seed-0",
        "fedprox-mu=0.1/seed-0",
        "fedavg/seed-1",
        "fedprox-mu=0.1/seed-1",
    ]
    first = open_pieces(tmp_path, made)[0]
    rounds: list[int] = []
    assert do(tmp_path / first.place, first.values, rounds) == ""
    assert rounds == [1, 2]
    assert len(open_pieces(tmp_path, made)) == 3
    (tmp_path / "fedprox-mu=0.1/seed-0").mkdir(parents=True)
    (tmp_path / "fedprox-mu=0.1/seed-0/metrics.jsonl").touch()  # killed while it was made
    second = open_pieces(tmp_path, made)[0]
    assert do(tmp_path / second.place, second.values) == ""
    found = stand(of_plan(tmp_path, made))
    assert [len(row.values) for row in found.rows] == [1, 1]


def test_a_piece_that_fails_keeps_its_sentence_and_may_be_tried_again(tmp_path: Path) -> None:
    made = plan(methods=["feda4", "fedavg"], settings=["data.probe=0", "data.partition.clients=4", "cohort=2"], seeds=1)
    piece = open_pieces(tmp_path, made)[0]
    sentence = do(tmp_path / piece.place, piece.values)
    assert sentence.startswith("This method needs a probe set")
    (feda4, fedavg) = of_plan(tmp_path, made)
    assert (feda4.sentence, feda4.runs[0].status, feda4.runs[0].method) == (sentence, "failed", "feda4")
    assert (fedavg.runs, fedavg.sentence) == ((), "")
    write_plan(tmp_path, made)  # which alone tells of what failed before it wrote its configuration
    alone = read_run(tmp_path / piece.place)
    assert (alone.method, alone.data, alone.rounds) == ("feda4", "digits", int(piece.values["rounds"]))
    assert open_pieces(tmp_path, made)[0] == piece
    mended = {**piece.values, "data": {**piece.values["data"], "probe": 1}}
    assert do(tmp_path / piece.place, mended) == ""
    assert of_plan(tmp_path, made)[0].sentence == ""


def test_a_fault_of_ours_is_told_in_one_line_with_its_traceback_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("counterpoise.comparisons.worker.setup", broken)
    piece = open_pieces(tmp_path, plan())[0]
    assert do(tmp_path / "x", piece.values) == "RuntimeError: two lines"
    kept = (tmp_path / "x" / FAILURE).read_text()
    assert kept.startswith("RuntimeError: two lines\nTraceback")


def test_an_error_in_a_users_hook_is_kept_with_its_traceback(tmp_path: Path) -> None:
    error = CounterpoiseError("part n failed.")
    error.__cause__ = ZeroDivisionError("division by zero")
    assert failure(tmp_path / "x", error) == "part n failed."
    kept = (tmp_path / "x" / FAILURE).read_text()
    assert kept.startswith("part n failed.\nZeroDivisionError: division by zero\n")
    assert failure(tmp_path / "y", CounterpoiseError("A mistake.")) == (tmp_path / "y" / FAILURE).read_text().strip()


# ---------------------------------------------------------------- tables


def test_tables_for_papers(kept: Path) -> None:
    found = stand(collect([kept]))
    assert found.baseline == "fedavg"
    shown = [column for column in COLUMNS if column.server]
    markdown = as_markdown(found).splitlines()
    assert markdown[0].startswith("| method | accuracy (%) | vs fedavg [95 %] | p |")
    assert len(markdown) == 5
    assert {line.count("|") for line in markdown} == {5 + len(shown)}
    latex = as_latex(found).splitlines()
    assert latex[0] == r"\begin{tabular}{l" + "r" * (3 + len(shown)) + "}"
    assert r"fedprox(mu=0.1) & " in latex[5]
    assert r"$\pm$" in latex[5]
    assert r"accuracy (\%)" in latex[2]
    with pytest.raises(cp.CounterpoiseError, match="The baseline must be one of fedavg, "):
        stand(collect([kept]), "x")


def test_a_table_as_comma_separated_values(kept: Path) -> None:
    found = stand(collect([kept]))
    read = pd.read_csv(io.StringIO(as_csv(found)), index_col="method")
    assert list(read.index) == [row.label for row in found.rows]
    for row in found.rows:
        assert read.loc[row.label, "accuracy"] == row.mean
        assert read.loc[row.label, "seconds"] == row.measures["seconds"]
        assert row.paired is None or read.loc[row.label, "difference"] == row.paired.difference
    assert math.isnan(read.loc["fedavg", "difference"])


def test_names_in_latex_are_escaped(kept: Path) -> None:
    (group, *_) = collect([kept])
    odd = type(group)(r"a_b&c\d%{-1}", group.runs)
    assert r"a\_b\&c\textbackslash{}d\%\{$-$1\} &" in as_latex(stand([odd]))


def test_a_target_is_told_of_the_seeds_that_reached_it(tmp_path: Path) -> None:
    fast, slow, _ = (keep(tmp_path / str(seed), seed=seed, level=level) for seed, level in enumerate((0.9, 0.7, 0.3)))
    first = [next(r.round for r in records if r.metrics["accuracy"] >= 0.6) for records in (fast, slow)]
    assert first[0] < first[1]
    middle = sum(first) / 2
    found = stand(collect([tmp_path]))
    line = f"accuracy 0.6 reached by fedavg: in round {middle:g}, after {bytes_in_words(1500 * middle)} both ways"
    assert reached(found, 0.6) == [f"{line} (mean over 2 of 3 seeds)"]
    assert reached(found, 1) == ["accuracy 1 reached by fedavg: never"]
    assert reached(found, None) == []


@pytest.mark.parametrize("seeds", [5, 6])
def test_the_verdict_says_what_few_seeds_could_not_have_shown(kept: Path, seeds: int) -> None:
    found = stand(collect([kept]))
    base = found.rows[0]._replace(label="base", values=dict.fromkeys(range(seeds), 0.5), mean=0.5)
    leads = [0.1 + 0.01 * seed for seed in range(seeds)]
    better = base._replace(label="better", values={s: 0.5 + lead for s, lead in enumerate(leads)}, mean=0.6)
    test = stats.ttest_1samp(leads, 0)
    low, high = (100 * end for end in test.confidence_interval())
    lines = verdict(type(found)(found.groups, [base, better], "", "accuracy"))
    told = f"ahead of base by {100 * np.mean(leads):.2f} [+{low:.2f}, +{high:.2f}], p = {test.pvalue:.2g}"
    if seeds == 6:
        assert lines[1:] == [f"{told}, Wilcoxon's p = {stats.wilcoxon(leads).pvalue:.2g}"]
    else:
        assert lines[1] == told
        assert lines[2:] == [
            f"with 5 seeds that vary this much, a lead below {(high - low) / 2:.2f} cannot be told from noise",
            "this p assumes that differences are normal; Wilcoxon's test does not, and needs 6 seeds",
        ]


def test_wilcoxons_p_has_a_column_where_there_are_seeds_enough(kept: Path) -> None:
    found = stand(collect([kept]))
    group = found.groups[0]

    def table(seeds: int) -> tuple[list[str], list[list[str]]]:
        beside = paired([0.1 * (seed + 1) for seed in range(seeds)], [0.0] * seeds)
        return columns(type(found)([group], [found.rows[0]._replace(paired=beside)], "x", "accuracy"))

    assert "Wilcoxon p" not in table(5)[0]
    heads, ((*cells,),) = table(6)
    assert cells[heads.index("Wilcoxon p")] == "0.031"
    assert len(heads) == len(cells) == len(table(5)[0]) + 1


def test_the_verdict_warns_of_noise(kept: Path) -> None:
    found = stand(collect([kept]))
    one, *_ = found.rows
    better = one._replace(label="better", values={s: v + 0.1 for s, v in one.values.items()}, mean=one.mean + 0.1)
    mixed = one._replace(label="mixed", values={0: one.values[0] + 0.1, 1: one.values[1] - 0.09}, mean=one.mean + 0.005)

    def said(*rows: Any) -> str:
        return "\n".join(verdict(type(found)(found.groups, rows, "", "accuracy")))

    assert "best: better, accuracy" in said(one, better)
    assert said(one._replace(low=0.25, high=0.25, mean=0.25)).endswith("fedavg, accuracy 25.00 % over 2 seeds")
    assert "ahead of fedavg by 10.00 with each of 2 seeds\na difference that never varies cannot be tested" in said(
        one, better
    )
    assert "warning: ahead of fedavg by 0.50, which cannot be told from noise: p = 0.97" in said(one, mixed)
    agreed = one._replace(
        label="agreed", values={0: one.values[0] + 0.01, 1: one.values[1] + 0.03}, mean=one.mean + 0.02
    )
    cauchy = 100 * math.tan(math.pi * 0.475) * 0.01
    noise = (
        f"warning: ahead of fedavg by 2.00, which cannot be told from noise: [{2 - cauchy:.2f}, +{2 + cauchy:.2f}], p ="
    )
    assert noise in said(one, agreed)
    assert said(one).count("\n") == 0
    single = one._replace(values={0: one.values[0]}), better._replace(values={0: better.values[0]})
    assert "by 10.00 with one seed\none seed cannot tell a difference from noise: compare more seeds" in said(*single)
    assert "--seeds" not in said(*single) + said(one, better) + said(one, agreed)
    assert said(one._replace(mean=float("nan"))).startswith("Nothing was measured, so there is no best one: give ")


def test_with_personal_models_alone_these_are_ranked(kept: Path) -> None:
    found = stand(collect([kept]))
    none = found.rows[0]._replace(values={}, mean=float("nan"))
    lines = verdict(type(found)(found.groups, [none], "", "accuracy", own=found.rows))
    assert lines[0].startswith("best by personal accuracy: fedavg, accuracy ")


def test_a_tie_is_no_lead_and_a_mean_over_other_seeds_none_either(kept: Path) -> None:
    found = stand(collect([kept]))
    one = found.rows[0]._replace(values={0: 0.3}, mean=0.3)

    def said(metric: str, *rows: Any) -> list[str]:
        return verdict(type(found)(found.groups, rows, "", metric))[1:]

    assert said("accuracy", one, one._replace(label="b", values={0: 0.1 + 0.2})) == ["level with b: no seed differs"]
    mixed = [one._replace(values=values) for values in ({0: 0.3, 1: 0.5}, {0: 0.5, 1: 0.3})]
    assert said("accuracy", *mixed) == ["level with fedavg over 2 seeds that differ"]
    turned = [one._replace(values=dict(enumerate(values))) for values in ((0.1, 0.3, 0.35), (0.35, 0.1, 0.3))]
    assert said("accuracy", *turned) == ["level with fedavg over 3 seeds that differ"]  # but in the last bit
    lucky = one._replace(label="lucky", values={0: 0.2, 1: 0.9}, mean=0.55)
    assert said("accuracy", one, lucky)[0] == "ahead of lucky by 10.00 with one seed"
    assert said("loss", one, lucky)[0] == "ahead of fedavg by 0.1000 with one seed"
    less, more = (
        one._replace(label=label, values=dict(enumerate(values)), mean=sum(values) / 3)
        for label, values in (("less", (0.1, 0.2, 0.3)), ("more", (0.2, 0.31, 0.39)))
    )
    (lead, low, high) = map(float, re.findall(r"[-+]?\d+\.\d{4}", said("loss", less, more)[0])[:3])
    assert 0 < low < lead < high
    third = one._replace(label="third", values={2: 0.1}, mean=0.1)  # no seed is shared by all three
    assert said("accuracy", one, lucky, third)[0] == "behind fedavg by 10.00 with one seed"
    assert said("accuracy", one, lucky, third)[-1].endswith(
        "the ranking is over different seeds, as none is shared by all"
    )


def test_an_interval_of_accuracy_ends_at_100(kept: Path) -> None:
    found = stand(collect([kept]))
    row = found.rows[0]._replace(mean=0.5, low=-0.2, high=1.3)
    said = verdict(type(found)(found.groups, [row._replace(low=0.2)], "", "accuracy"))[0]
    assert "accuracy 50.00 % [20.00, 100.00]" in said
    assert "accuracy 50.00 % over" in verdict(type(found)(found.groups, [row], "", "accuracy"))[0]  # it says nothing
    assert "loss 0.5000 [-0.2000, 1.3000]" in verdict(type(found)(found.groups, [row], "", "loss"))[0]


def test_two_seeds_that_disagree_have_no_interval_and_are_said_to_tell_nothing(kept: Path) -> None:
    found = stand(collect([kept]))
    first, second = ({0: 0.2, 1: 0.4}, {0: 0.35, 1: 0.2})
    rows = [
        found.rows[0]._replace(label=label, values=values, mean=sum(values.values()) / 2, paired=beside)
        for label, values, beside in (
            ("a", first, paired([0.2, 0.4], [0.35, 0.2])),
            ("b", second, None),
        )
    ]
    said = type(found)([found.groups[0]] * 2, rows, "b", "accuracy")
    assert verdict(said)[1:3] == [
        "warning: ahead of b by 2.50, which cannot be told from noise: p = 0.91",
        "two seeds cannot tell which is better: compare at least 6",
    ]
    assert columns(said)[1][0][2:4] == ["+2.50", "0.91"]
    assert "[-2.1986, +2.2486]" in columns(type(found)([found.groups[0]] * 2, rows, "b", "loss"))[1][0][2]


def test_a_method_whose_accuracy_never_changes_is_named(tmp_path: Path) -> None:
    keep(tmp_path / "fedavg")
    found = stand(collect([tmp_path]))
    (group,) = found.groups
    (run,) = group.runs
    still = [replace(record, metrics={**record.metrics, "accuracy": 0.1}) for record in run.records]
    stuck = replace(group, label="stuck", runs=(replace(run, records=still),))
    told = [line for line in verdict(stand([group, stuck])) if "never changed" in line]
    assert len(told) == 1
    assert told[0].startswith("warning: the accuracy of stuck never changed: perhaps")
    short = replace(group, label="short", runs=(replace(run, records=still[:2]),))
    assert not any("never changed" in line for line in verdict(stand([group, short])))


# ---------------------------------------------------------------- personal models


def personal_and_plain(folder: Path, **settings: Any) -> None:
    for seed in range(3):
        keep(folder / f"fedavg{seed}", seed=seed)
        keep(folder / f"ditto{seed}", seed=seed, method={"name": "ditto"}, **settings)


def test_personal_models_have_a_table_and_a_verdict_of_their_own(tmp_path: Path) -> None:
    personal_and_plain(tmp_path, personal=True)
    found = stand(collect([tmp_path]))
    heads, rows = own_columns(found)
    assert heads[:3] == ["method", "model", "accuracy (%)"]
    assert [row[:2] for row in rows] == [["fedavg", "server's"], ["ditto", "personal"]]
    lines = verdict(found)
    assert lines[0].startswith("best by the server's model: ")
    assert any(line.startswith("best by personal accuracy: fedavg, accuracy ") for line in lines)
    for text in (as_markdown(found), as_latex(found)):
        assert "Personal models" in text
        assert "worst tenth" in text
    plain = as_plain(found)
    assert plain[1]["own_models"]["difference"]["difference"] == pytest.approx(
        found.own[1].mean - found.own[0].mean, abs=1e-12
    )
    measured = found.groups[1].runs[0].measures()
    assert measured["own model's accuracy mean"] == pytest.approx(found.own[1].values[0])


def test_personal_models_that_nothing_measured_are_named(tmp_path: Path) -> None:
    personal_and_plain(tmp_path, heldout=False)
    found = stand(collect([tmp_path]))
    assert not found.own
    assert verdict(found)[-1].startswith(
        "warning: the personal models of ditto were not measured: no client's data was"
    )


def test_a_board_is_told_what_clients_have_of_their_own_models(tmp_path: Path) -> None:
    record = keep(tmp_path / "run", personal=True)[-1]
    server, own = (np.mean(list(record.clients[name].values())) for name in ("accuracy", "personal_accuracy"))
    means = {"client_accuracy": pytest.approx(server), "personal_accuracy": pytest.approx(own)}
    assert display_metrics(record) == {**record.metrics, **means}
    assert "personal_accuracy" not in display_metrics(keep(tmp_path / "plain")[-1])


def lost_seed(folder: Path) -> None:
    """Two methods over three seeds, the first seed of one of them lost. The other is better by that seed alone."""
    for name, levels in (("fedavg", (0.6, 0.6)), ("fedprox", (0.99, 0.5, 0.5))):
        for seed, level in zip(range(3 - len(levels), 3), levels, strict=True):
            keep(folder / name / f"seed-{seed}", method={"name": name}, seed=seed, level=level)


def test_a_lost_seed_is_out_of_the_ranking_and_in_the_table(tmp_path: Path) -> None:
    lost_seed(tmp_path)
    found = stand(collect([tmp_path]))
    fedavg, fedprox = found.rows
    assert fedprox.mean > fedavg.mean  # over all its seeds, which is no fair comparison
    best, *_, lost = verdict(found)
    assert best.startswith(f"best: fedavg, accuracy {100 * fedavg.mean:.2f} %")
    assert best.endswith("over 2 seeds")
    assert lost == "warning: fedavg has no result for seed 0: the ranking is over the 2 seeds that all have"
    heads, rows = columns(found)
    assert [dict(zip(heads, row, strict=True))["seeds"] for row in rows] == ["2", "3"]
    plain = {row["label"]: row for row in as_plain(found)}
    assert [plain[name]["seed_count"] for name in ("fedavg", "fedprox")] == [2, 3]
    shared = np.mean([fedprox.values[1], fedprox.values[2]])
    assert plain["fedprox"]["ranked"] == {"seeds": [1, 2], "mean": pytest.approx(shared)}
    keep(tmp_path / "fedavg/seed-0", seed=0)
    found = stand(collect([tmp_path]))
    assert "seeds" not in columns(found)[0]
    assert "ranking" not in "\n".join(verdict(found))


def test_the_report_shows_a_lost_seed_once(tmp_path: Path) -> None:
    lost_seed(tmp_path)
    table = next(part for part in sections(study([tmp_path]))[0].parts if isinstance(part, Table))
    assert table.columns[:3] == ["method", "seeds done", "accuracy (%)"]
    assert [row[1] for row in table.rows] == ["2 of 2", "3 of 3"]


def test_how_to_finish_a_lost_seed(tmp_path: Path) -> None:
    lost_seed(tmp_path)
    write_plan(tmp_path, compared("quickstart", ["fedavg", "fedprox"], [], 3, 12, "", ""))
    again = f"to finish: counterpoise resume {tmp_path}"
    assert verdict(stand(collect([tmp_path])))[-1] == again
    piece = tmp_path / "fedavg/seed-0"
    keep(piece, seed=0, status="running")
    (piece / "failure.txt").write_text("It has lost its checkpoint.")
    told = f"{again} (if it fails again, first: counterpoise runs rm {piece})"
    assert verdict(stand(collect([tmp_path])))[-1] == told
    (piece / "failure.txt").unlink()
    index = piece / "checkpoint/checkpoint.json"
    index.write_text(index.read_text().replace('"running"', '"diverged"'))
    assert "to finish" not in "\n".join(verdict(stand(collect([tmp_path]))))
