"""A small study from beginning to end: run, killed, resumed, extended, and shown from its results alone."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from workers import in_this_process

import counterpoise as cp
from counterpoise.cli import main
from counterpoise.cli.studying import _to_do
from counterpoise.comparisons.conduct import News, conducting
from counterpoise.comparisons.plan import read_plan
from counterpoise.reports import write
from counterpoise.runs.locks import Busy
from counterpoise.studies.contents import STUDY
from counterpoise.studies.finding import found_in
from counterpoise.studies.measuring import check_measure
from counterpoise.studies.performing import begun, study_board
from counterpoise.studies.plans import plan_of
from counterpoise.studies.provenance import made_here
from counterpoise.studies.reading import read_study
from counterpoise.studies.results import read_results

VALUES: dict[str, Any] = {
    "title": "Tiny",
    "methods": ["fedavg", "scaffold"],
    "seeds": 2,
    "rounds": 2,
    "set": {"local": {"epochs": 1}, "data": {"partition": {"clients": 6}}, "cohort": 3, "engine": {"threads": 1}},
    "cell": [
        {"name": "mild", "like": "quickstart", "published": {"fedavg": 90.0}},
        {"name": "harsh", "like": "quickstart", "set": {"data": {"partition": {"alpha": 0.1}}}},
        {"name": "lost", "like": "quickstart", "cannot": "its data cannot be had"},
    ],
}


def put(folder: Path, **changes: Any) -> Path:
    (folder / "tiny.toml").write_text(tomli_w.dumps(VALUES | changes))
    return folder / "tiny.toml"


def curves(path: Path) -> dict[tuple[str, str, int], list[tuple[int, float]]]:
    return {
        (name, label, seed): one.curve
        for name, cell in read_results(path)[1].items()
        for label, arm in cell.arms.items()
        for seed, one in arm.outcomes.items()
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the study, its results, and its runs in ``out``."""
    folder = tmp_path_factory.mktemp("whole")
    told: list[News | None] = []
    found = cp.study(put(folder), folder / "out", jobs=1, tell=told.append)
    ends = {news.piece.place for news in told if news is not None and news.end == "finished"}
    assert ends == {
        f"{cell}/{arm}/seed-{seed}" for cell in ("mild", "harsh") for arm in ("fedavg", "scaffold") for seed in (0, 1)
    }
    assert [row.verdict for row in found.rows[:1]] == ["(fewer than 5 seeds)"]
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "copy")
    return tmp_path / "copy"


def places(folder: Path, path: Path, **more: Any) -> set[str]:
    """The pieces that a study would still run."""
    with begun(read_study(path), folder, path.with_suffix(".json"), **more) as work:
        return {piece.place for piece in work.pieces}


def test_every_cell_is_an_ordinary_comparison(copy: Path) -> None:
    plan = read_plan(copy / "out/harsh")
    assert ([arm.label for arm in plan.arms], plan.seeds) == (["fedavg", "scaffold"], (0, 1))
    assert plan.values["data"]["partition"]["alpha"] == 0.1
    assert "fedavg and scaffold on digits" in write(copy / "out/harsh").read_text()
    assert sorted(path.name for path in (copy / "out").iterdir()) == [".lock", "harsh", "mild", STUDY, "workers.log"]


def test_runs_of_different_cells_train_as_one_batch(whole: Path) -> None:
    """Both cells and both seeds of a method; the other method does other work on clients."""
    found = {
        path.parent.parent.name: json.loads(path.read_text())["batches"][0]["runs"]
        for path in whole.rglob("batch.json")
    }
    assert found == {"fedavg": 4, "scaffold": 4}


def test_the_results_are_those_of_the_runs(whole: Path) -> None:
    found = curves(whole / "tiny.json")
    assert len(found) == 8
    for (cell, arm, seed), curve in found.items():
        text = (whole / f"out/{cell}/{arm}/seed-{seed}/metrics.jsonl").read_text()
        lines = [line for line in map(json.loads, text.splitlines()) if "round" in line]
        assert curve == [(line["round"], pytest.approx(line["accuracy"], rel=1e-5)) for line in lines]
    document = json.loads((whole / "tiny.json").read_text())
    (made,) = document["made"]
    assert "cores, torch" in made["machine"]
    assert made["version"] == cp.__version__
    piece = document["cells"]["mild"]["arms"]["fedavg"]["pieces"][0]
    text = (whole / "out/mild/fedavg/seed-0/metrics.jsonl").read_text()
    took = [line["seconds"] for line in map(json.loads, text.splitlines()) if "round" in line]
    assert piece["seconds"] == pytest.approx(sum(took), abs=1e-3)
    assert piece["value"] == pytest.approx(100 * piece["curve"][-1], rel=1e-5)


def test_what_has_a_result_is_not_run_again_even_if_the_runs_are_lost(copy: Path) -> None:
    assert places(copy / "out", copy / "tiny.toml") == set()
    shutil.rmtree(copy / "out")
    assert places(copy / "out", copy / "tiny.toml") == set()
    assert sorted(path.name for path in (copy / "out").iterdir()) == [".lock", STUDY]


def test_runs_without_results_are_taken_in_as_made_by_the_command_that_ran_them(copy: Path) -> None:
    """A command that was killed had no time to write them down."""
    before = curves(copy / "tiny.json")
    (copy / "tiny.json").unlink()
    text = (copy / "out" / STUDY).read_text()
    (copy / "out" / STUDY).write_text(text.replace('commit = "', 'commit = "earlier-'))
    assert places(copy / "out", copy / "tiny.toml") == set()
    assert curves(copy / "tiny.json") == before
    (made,) = json.loads((copy / "tiny.json").read_text())["made"]
    assert made["commit"].startswith("earlier-")


@pytest.mark.usefixtures("without_workers")
def test_seeds_cells_and_methods_that_are_added_later_are_all_that_is_run(copy: Path) -> None:
    new = {"mild/fedavg/seed-2", "mild/scaffold/seed-2", "harsh/fedavg/seed-2", "harsh/scaffold/seed-2"}
    assert places(copy / "out", copy / "tiny.toml", seeds=3) == new
    assert places(copy / "out", copy / "tiny.toml", seeds=3, cells=["mild"]) == {"mild/fedavg/seed-2", "mild/scaffold/seed-2"}  # fmt: skip
    assert places(copy / "out", copy / "tiny.toml", seeds=3, cells=["mild"], methods=["fedavg"]) == {
        "mild/fedavg/seed-2"
    }
    cells = [*VALUES["cell"], {"name": "third", "like": "quickstart", "seeds": 1}]
    cells[0] = cells[0] | {"methods": ["fedavg", "fedprox", "scaffold"]}
    put(copy, cell=cells)
    assert places(copy / "out", copy / "tiny.toml") == {
        *("mild/fedprox/seed-0", "mild/fedprox/seed-1", "third/fedavg/seed-0", "third/scaffold/seed-0")
    }
    before = curves(copy / "tiny.json")
    found = cp.study(copy / "tiny.toml", copy / "out", cells=["third"], jobs=1)
    assert [row.verdict for row in found.rows] == ["", ""]
    after = curves(copy / "tiny.json")
    assert after.keys() - before.keys() == {("third", "fedavg", 0), ("third", "scaffold", 0)}
    assert {key: after[key] for key in before} == before


VIEW = {"name": "mild loss", "runs_of": "mild", "measure": "loss", "methods": ["scaffold"]}


def test_a_view_shows_the_same_runs_by_another_measure(copy: Path) -> None:
    """Added later, it is filled from the runs that are still there; if they are lost, only those it shows are run."""
    put(copy, cell=[*VALUES["cell"], VIEW])
    text = (copy / "out" / STUDY).read_text()
    (copy / "out" / STUDY).write_text(text.replace('commit = "', 'commit = "later-'))
    shutil.copytree(copy, copy.parent / "lost")
    shutil.rmtree(copy.parent / "lost/out")
    assert places(copy.parent / "lost/out", copy.parent / "lost/tiny.toml") == {
        "mild/scaffold/seed-0",
        "mild/scaffold/seed-1",
    }
    before = (copy / "tiny.json").read_text()
    assert places(copy / "out", copy / "tiny.toml") == set()
    assert json.loads((copy / "tiny.json").read_text())["cells"]["mild"] == json.loads(before)["cells"]["mild"]
    found = curves(copy / "tiny.json")
    assert {label for name, label, _ in found if name == "mild loss"} == {"scaffold"}
    for seed in (0, 1):
        text = (copy / f"out/mild/scaffold/seed-{seed}/metrics.jsonl").read_text()
        lines = [line for line in map(json.loads, text.splitlines()) if "round" in line]
        assert found["mild loss", "scaffold", seed] == [
            (line["round"], pytest.approx(line["loss"], rel=1e-5)) for line in lines
        ]
    assert not (copy / "out/mild_loss").exists()
    put(copy, cell=[*VALUES["cell"], VIEW | {"measure": "accuracy"}])
    with pytest.raises(cp.CounterpoiseError, match="has the loss of the cell 'mild loss'"):
        places(copy / "out", copy / "tiny.toml")


@pytest.mark.usefixtures("without_workers")
def test_a_view_is_filled_while_its_runs_end(tmp_path: Path) -> None:
    cell = VALUES["cell"][0] | {"seeds": 1}
    found = cp.study(put(tmp_path, cell=[cell, VIEW]), tmp_path / "out", cells=["mild"], jobs=1)
    assert [row.cell.name for row in found.rows] == ["mild", "mild"]
    assert [key for key in curves(tmp_path / "tiny.json") if key[0] == "mild loss"] == [("mild loss", "scaffold", 0)]


@pytest.mark.usefixtures("without_workers")
def test_a_cell_that_cannot_be_run_is_run_if_asked(cli, copy: Path) -> None:
    new = {f"lost/{arm}/seed-{seed}" for arm in ("fedavg", "scaffold") for seed in (0, 1)}
    assert places(copy / "out", copy / "tiny.toml", cells=["lost"]) == set()
    assert places(copy / "out", copy / "tiny.toml", anyway=True) == new
    found = cp.study(copy / "tiny.toml", copy / "out", cells=["lost"], seeds=1, anyway=True, jobs=1)
    assert [(len(row.values), row.verdict) for row in found.rows] == [(1, ""), (1, "")]
    words = ["study", "run", copy / "tiny.toml", "--out", copy / "out", "--cells", "lost", "--jobs", "1"]
    assert "All its runs have results" in cli(*words)[1]
    code, out, err = cli(*words, "--anyway")
    assert (code, "cannot be run" in out) == (0, False)
    assert err == "2 runs left in 1 cell: less than a minute, by earlier runs on this machine.\n"
    assert len([key for key in curves(copy / "tiny.json") if key[0] == "lost"]) == 4


def test_a_study_says_what_is_left_and_about_how_long_it_takes(copy: Path) -> None:
    def told(study: Path, results: Path, **more: Any) -> str:
        with begun(read_study(study), copy / "out", results, seeds=3, **more) as work:
            return _to_do(work, study_board(work, 1))

    document = json.loads((copy / "tiny.json").read_text())
    for cell in document["cells"].values():
        for arm in cell["arms"].values():
            for piece in arm["pieces"]:
                piece["seconds"] = 1200.0  # of two rounds
    (copy / "slow.json").write_text(json.dumps(document))
    earlier = "by earlier runs on this machine."
    assert told(copy / "tiny.toml", copy / "slow.json") == f"4 runs left in 2 cells: about 80 minutes, {earlier}"
    assert told(copy / "tiny.toml", copy / "slow.json", anyway=True).startswith(
        "10 runs left in 3 cells: about 3 hours"
    )
    document["made"][0]["machine"] = "abacus, 2 cores, torch 0.1"
    (copy / "there.json").write_text(json.dumps(document))
    there = told(copy / "tiny.toml", copy / "there.json")
    assert there.startswith(
        "4 runs left in 2 cells. A run took 1200 s on average (abacus, 2 cores), which is its share"
    )
    shutil.rmtree(copy / "out")
    assert told(copy / "tiny.toml", copy / "none.json") == "12 runs left in 2 cells."


def test_runs_that_failed_are_tried_again_and_those_that_diverged_are_not(copy: Path) -> None:
    document = json.loads((copy / "tiny.json").read_text())
    arms = document["cells"]["mild"]["arms"]
    arms["fedavg"]["pieces"][0].update(status="failed", why="no memory")
    arms["scaffold"]["pieces"][1].update(status="diverged", why="It diverged after round 1.")
    (copy / "tiny.json").write_text(json.dumps(document))
    shutil.rmtree(copy / "out")
    assert places(copy / "out", copy / "tiny.toml") == {"mild/fedavg/seed-0"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"rounds": 3},
            "results of the cell 'mild', fedavg, with other settings: rounds was 2 and is 3. Give the cell",
        ),
        ({"measure": "loss"}, "has the accuracy of the cell 'mild', and the study asks for loss. Give the cell"),
    ],
)
def test_results_of_other_settings_are_not_taken_for_these(copy: Path, changes: Any, sentence: str) -> None:
    put(copy, **changes)
    with pytest.raises(cp.CounterpoiseError, match=sentence):
        places(copy / "out", copy / "tiny.toml")


def test_where_a_run_trains_is_no_other_setting(copy: Path) -> None:
    put(copy, set=VALUES["set"] | {"engine": {"threads": 2}})
    shutil.rmtree(copy / "out")
    assert places(copy / "out", copy / "tiny.toml") == set()
    put(copy, set=VALUES["set"] | {"engine": {"bf16": True}})
    with pytest.raises(cp.CounterpoiseError, match=r"engine\.bf16 was False and is True"):
        places(copy / "out", copy / "tiny.toml")


def test_one_command_at_a_time_works_on_a_study_and_on_its_cells(copy: Path) -> None:
    with begun(read_study(copy / "tiny.toml"), copy / "out", copy / "tiny.json", seeds=3):
        for folder, name in ((copy / "out", STUDY), (copy / "out/mild", "compare.toml")):
            with pytest.raises(Busy, match="Another process is at work"), _impatient(folder, name):
                pass
        with pytest.raises(Busy, match="Another process is at work"):
            places(copy / "out", copy / "tiny.toml")


@contextlib.contextmanager
def _impatient(folder: Path, name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("counterpoise.comparisons.conduct._PATIENCE", 0.0)
        with conducting(folder, name):
            yield


def test_a_folder_with_something_else_in_it_is_refused(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes.txt").touch()
    with pytest.raises(cp.CounterpoiseError, match=r"is not empty\. Choose another one with --out"):
        places(tmp_path / "out", put(tmp_path))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", "160")
        monkeypatch.setattr(sys, "argv", ["counterpoise", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return call


@pytest.mark.parametrize("name", ["main", "v0.1.0", "bd22db", "bd22db4-dirty", "f" * 41])
def test_a_study_is_not_begun_with_a_branch_as_its_commit(
    name: str, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTERPOISE_COMMIT", name)
    path = put(tmp_path)
    code, _, err = cli("study", "run", path, "--out", tmp_path / "out")
    told = f"COUNTERPOISE_COMMIT is {name!r}. Give a commit: 7 to 40 hexadecimal digits, no branch or tag."
    assert (code, told in " ".join(err.split())) == (2, True)
    assert list(tmp_path.iterdir()) == [path]


def test_the_commit_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOISE_COMMIT", "bd22db4")
    assert made_here().commit == "bd22db4"


def test_the_command_line_shows_and_reports_results_alone(cli, whole: Path, tmp_path: Path) -> None:
    shutil.copy(whole / "tiny.json", tmp_path / "alone.json")
    code, out, err = cli("study", "show", tmp_path / "alone.json")
    assert (code, err) == (0, "")
    assert "(fewer than 5 seeds)" in out
    assert "cannot be run: lost: its data cannot be had" in out
    code, text, _ = cli("study", "show", whole / "tiny.toml", "--json", "--cells", "mild")
    assert [row["method"] for row in json.loads(text)["rows"]] == ["fedavg", "scaffold"]
    code, out, err = cli("study", "report", tmp_path / "alone.json", "--out", tmp_path)
    assert (code, err) == (0, "")
    assert {path.name for path in tmp_path.iterdir()} == {"alone.json", "tiny.html", "tiny.md", "tiny.svg"}
    code, out, err = cli("study", "run", whole / "tiny.toml", "--out", whole / "out")
    assert (code, err) == (0, "")
    told = f"All its runs have results in {whole / 'tiny.json'}, so nothing was run. To run them again: --results mine.json"
    assert out.splitlines()[-1] == told
    assert "cannot be run: lost: its data cannot be had" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["study", "run", "no.toml"], "There is no file no.toml."),
        (["study", "show", "no.json"], "There is no file no.json."),
        (["study", "run", "{}/tiny.toml", "--cells", "mid"], "There is no cell 'mid' in the study tiny. Did you mean 'mild'?"),
        (["study", "run", "{}/tiny.toml", "--methods", "fedavg,scafold"], "Did you mean 'scaffold'?"),
        (["study", "show", "{}/tiny.toml", "--results", "no.json"], "There is no file no.json."),
        (["study", "report", "{}/tiny.toml", "--out", "no"], "There is no folder no for the pages."),
        (["resume", "{}/out"], "holds a study. Continue it with the command that began it: counterpoise study run"),
    ],
)  # fmt: skip
def test_mistakes_are_sentences(cli, whole: Path, words: list[str], sentence: str) -> None:
    code, _, err = cli(*(word.format(whole) for word in words))
    assert (code, err.count("\n")) == (2, 1), err
    assert sentence in err


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"measure": "acuracy"}, r"There is no measure 'acuracy' in the cell 'mild'\. Did you mean 'accuracy'\?"),
        ({"measure": "personal acuracy"}, "Did you mean 'personal accuracy'?"),
        ({"measure": "honest replies"}, "Did you mean 'honest replies left out'?"),
        (
            {"cell": [*VALUES["cell"], {"name": "view", "runs_of": "mild", "measure": "top-k"}]},
            "There is no measure 'top-k' in the cell 'view'",
        ),
    ],
)
def test_a_measure_that_no_run_will_have_is_refused_before_they_run(
    tmp_path: Path, changes: Any, sentence: str
) -> None:
    with pytest.raises(cp.CounterpoiseError, match=sentence):
        places(tmp_path / "out", put(tmp_path, **changes))
    assert not (tmp_path / "out").exists()


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"measure": "acuracy"}, "There is no measure 'acuracy' in the cell 'mild'. Did you mean 'accuracy'?"),
    ({"measure": "top-k", "set": {"metrics": ["accuracy"]}}, "There is no measure 'top-k' in the cell 'mild'."),
    ({"set": {"metrics": "accuracy"}}, "The cell 'mild': metrics must be a list of names, not 'accuracy'."),
    ({"set": {"metrics": [3]}}, "The cell 'mild': metrics must be a list of names, not [3]."),
    ({"set": {"method": {"mu": 1}}}, "The cell 'mild' takes its methods from methods = [...], not from set."),
    ({"cell": [{"name": "mild", "like": "quickstrat"}]}, "There is no preset 'quickstrat' (a file's name ends in"),
    (
        {"methods": [{"method": "fedavg", "label": "fedavg", "set": {"seed": 0}}]},
        "The cell 'mild', fedavg: a method cannot set the seed.",
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), MISTAKES)
@pytest.mark.parametrize("command", ["run", "show", "report"])
def test_showing_a_study_refuses_what_running_it_refuses(
    cli, tmp_path: Path, command: str, changes: Any, sentence: str
) -> None:
    code, out, err = cli("study", command, put(tmp_path, **changes), "--results", tmp_path / "results.json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"Error: {sentence}")


def test_the_metrics_of_a_cells_file_and_of_its_methods_may_be_measured(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('like = "quickstart"\nmetrics = ["accuracy", "top-k(k=2)"]\n')
    cell = {"name": "mild", "like": "mine.toml", "measure": "top-k"}
    assert not found_in(put(tmp_path, cell=[cell])).doubts
    methods = ["fedavg", {"method": "fedprox", "set": {"metrics": ["top-k"]}}]
    assert not found_in(put(tmp_path, methods=methods, measure="top-k")).doubts


def test_a_cell_that_cannot_be_run_is_shown_whatever_it_is_like(tmp_path: Path) -> None:
    lost = VALUES["cell"][2] | {"measure": "pain", "like": "theirs.toml"}
    assert not found_in(put(tmp_path, cell=[*VALUES["cell"][:2], lost])).doubts


def test_measures_that_depend_on_the_metrics_or_on_notes_are_taken() -> None:
    for measure in ("loss", "personal loss by data", "top-k chosen by clients", "note alpha", "coupling of weight"):
        check_measure(measure, ["accuracy", "top-k"], "here")


def test_a_whole_study_is_removed_and_nothing_else(cli, copy: Path) -> None:
    (copy / "out" / "notes.txt").write_text("mine")
    (copy / "out" / "mild" / "notes.txt").write_text("mine")
    code, out, _ = cli("runs", "rm", copy / "out", "--yes")
    assert code == 0
    assert "removed: 8 runs" in out
    assert {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()} == {
        "tiny.toml",
        "tiny.json",
        "out/notes.txt",
        "out/mild/notes.txt",
    }
    put(copy).rename(copy / STUDY)  # a study's file that a user wrote
    code, _, err = cli("runs", "rm", copy, "--yes")
    assert code == 2
    assert "is not the folder of a run, a comparison, a sweep or a study; it is left alone." in err
    assert (copy / STUDY).exists()


def test_a_study_in_use_is_not_removed(cli, copy: Path) -> None:
    with begun(read_study(copy / "tiny.toml"), copy / "out", copy / "tiny.json"):
        code, _, err = cli("runs", "rm", copy / "out", "--yes")
    assert (code, "in use" in err) == (2, True)
    assert len(list((copy / "out").rglob("config.toml"))) == 8


def stoppable(folder: Path) -> Path:
    """A longer study whose runs are the same to the bit however they are batched: clients train one by one."""
    return put(folder, rounds=6, set=VALUES["set"] | {"engine": {"threads": 1, "backend": "per-client"}})


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, int], list[tuple[int, float]]]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    with in_this_process():
        cp.study(stoppable(folder), folder / "out")
    return curves(folder / "tiny.json")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_study_that_is_stopped_goes_on_to_the_same_numbers(
    cli: Any, tmp_path: Path, number: int, uninterrupted: Any
) -> None:
    words = ["study", "run", str(stoppable(tmp_path)), "--out", str(tmp_path / "out"), "--jobs", "1"]
    going = subprocess.Popen(
        [sys.executable, "-m", "counterpoise", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 120
    while sum(file.read_bytes().count(b"\n") for file in (tmp_path / "out").rglob("metrics.jsonl")) < 12:
        assert going.poll() is None, going.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    going.send_signal(number)
    _, err = going.communicate()
    if number == signal.SIGTERM:
        assert going.returncode == 143
        assert "of 8 runs done. The same command goes on." in err
    with in_this_process():
        code, _, err = cli(*words)
    assert code == 0, err
    assert len(uninterrupted) == 8
    assert curves(tmp_path / "tiny.json") == uninterrupted


@pytest.mark.usefixtures("without_workers")
def test_a_study_names_code_beside_its_file(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(
        "import counterpoise as cp\ndef ours(mu: float = 0.1) -> cp.Method:\n    return cp.methods.fedprox(mu=mu)\n"
    )
    path = put(tmp_path, methods=["fedavg", "beside:ours(mu=0.3)"], cell=VALUES["cell"][:1], seeds=1)
    plan = plan_of(read_study(path).cells[0])
    assert plan.arms[1].settings["method"] == {"name": "beside:ours", "mu": 0.3}
    assert list(plan.values["code"]) == ["beside.py"]
    found = cp.study(path, tmp_path / "out", jobs=1)
    assert [len(row.values) for row in found.rows] == [1, 1]


def test_a_cells_file_names_code_beside_it(tmp_path: Path) -> None:
    (tmp_path / "own_rules.py").write_text(
        "import counterpoise as cp\ndef net(shape, classes):\n    return cp.models.mlp(shape, classes, hidden=4)\n"
    )
    (tmp_path / "base.toml").write_text('like = "quickstart"\nmodel = "own_rules:net"\n')
    path = put(tmp_path, methods=["fedavg"], cell=[{"name": "a", "like": "base.toml"}])
    assert list(plan_of(read_study(path).cells[0]).values["code"]) == ["own_rules.py"]
