"""`counterpoise runs` and a method's page."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import counterpoise as cp
from counterpoise.cli import main
from counterpoise.engine.rounds.simulation import Batch
from counterpoise.methods import METHODS
from counterpoise.runs.companions import note_batch
from counterpoise.runs.costs import costs


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["counterpoise", *words])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return call


@pytest.fixture
def some(tmp_path: Path) -> None:
    fed = cp.load("digits", partition=cp.iid(clients=3))
    for name in ("fedavg", "fedprox"):
        cp.simulate(name, fed, model=cp.models.linear, rounds=2, out=tmp_path / "runs" / "deep" / name)


@pytest.mark.usefixtures("some")
def test_runs_are_listed_shown_compared_and_removed(cli) -> None:
    code, out, _ = cli("runs", "list")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "2/2" in out
    _, out, _ = cli("runs", "list", "--method", "prox", "--json")
    (row,) = json.loads(out)
    assert (row["method"], row["data"], row["status"], row["rounds"]) == ("fedprox", "digits", "finished", 2)
    assert row["folder"] == "runs/deep/fedprox"
    assert json.loads(cli("runs", "list", "--data", "mnist", "--json")[1]) == []
    assert len(json.loads(cli("runs", "list", "--since", "2020-01-01", "--json")[1])) == 2
    assert json.loads(cli("runs", "list", "--before", "2020-01-01", "--json")[1]) == []
    assert cli("runs", "list", "--since", "soon")[2] == "Error: --since takes a day such as 2026-01-31, not 'soon'.\n"

    _, out, _ = cli("runs", "show", "runs/deep/fedavg")
    assert out.startswith("fedavg on digits, seed 0: finished, 2 of 2 rounds\n")
    assert "accuracy (last round)" in out
    assert '[method]\nname = "fedavg"' in out
    note_batch(Path("runs/deep/fedavg"), Batch(3, 30, "batched", 30, False), 1)
    note_batch(Path("runs/deep/fedavg"), None, 2)
    _, out, _ = cli("runs", "show", "runs/deep/fedavg")
    lines = out.splitlines()[1:4]
    assert " ".join(" ".join(lines[:2]).split()) == (
        "trained from round 1: in one batch with 2 other runs, 30 clients in all, backend batched, chunk 30"
    )
    assert lines[2] == "trained from round 2: alone"
    shown = json.loads(cli("runs", "show", "runs/deep/fedavg", "--json")[1])
    assert [one["from_round"] for one in shown["batches"]] == [1, 2]
    assert shown["measures"]["rounds"] == 2
    assert not any("rounds to" in name for name in shown["measures"])
    assert cli("runs", "show", "runs")[2] == "Error: runs holds no run: there is no config.toml in it.\n"
    assert cli("runs", "show", "nowhere")[2] == "Error: There is no folder nowhere.\n"
    Path("runs/compare.toml").touch()
    assert "runs holds a comparison, not a run" in cli("runs", "show", "runs")[2]
    Path("runs/compare.toml").unlink()
    measured = json.loads(cli("runs", "show", "runs/deep/fedavg", "--target", "0.2", "--json")[1])["measures"]
    assert measured["rounds to accuracy 0.2"] == 1
    assert 2 * measured["bytes to accuracy 0.2"] == measured["bytes up"] + measured["bytes down"]
    assert re.search(
        r"^rounds to accuracy 1 +never *$", cli("runs", "show", "runs/deep/fedavg", "--target", "1")[1], re.M
    )
    assert "such as 0.9, not 2." in cli("runs", "show", "runs/deep/fedavg", "--target", "2")[2]

    _, out, _ = cli("runs", "compare")
    assert [line.split()[0] for line in out.splitlines()] == ["method", "fedavg", "fedprox", "best:", "ahead", "one"]
    _, out, _ = cli("runs", "compare", "--target", "0.2")
    assert re.search(r"^accuracy 0.2 reached by fedprox: in round 1, after [\d.]+ kB both ways$", out, re.M)
    assert cli("runs", "compare", "--format", "markdown")[1].startswith("| method |")
    assert "has no column for it" in cli("runs", "compare", "--format", "latex", "--target", "0.2")[2]
    assert cli("runs", "compare", "--format", "latex")[1].startswith(r"\begin{tabular}")
    assert "There is no format 'html'" in cli("runs", "compare", "--format", "html")[2]
    found = json.loads(cli("runs", "compare", "--baseline", "fedprox", "--json")[1])
    assert found["groups"][0]["difference"]["seeds"] == 1
    assert "no runs to compare" in cli("runs", "compare", "--method", "krum")[2]

    assert "left alone" in cli("runs", "rm", "runs", "--yes")[2]
    assert "left alone" in cli("runs", "rm", "runs/deep/fedavg", "runs/deep", "--yes")[2]
    assert Path("runs/deep/fedavg").exists()
    assert cli("runs", "rm", "runs/deep/fedavg", "--yes")[1] == "removed: 1 run\n"
    assert not Path("runs/deep/fedavg").exists()
    assert cli("runs", "list", "nowhere")[2] == "Error: There is no folder nowhere.\n"


def test_runs_that_a_rule_ended_say_why(cli, tmp_path: Path) -> None:
    fed = cp.load("digits", partition=cp.iid(clients=3), samples=200)
    rule = cp.when("accuracy", above=0.01)
    run = cp.simulate("fedavg", fed, model=cp.models.linear, rounds=5, stop=rule, out=tmp_path / "runs" / "a")
    _, out, _ = cli("runs", "list")
    assert f"{len(run.rounds)}/5 early" in out
    assert out.splitlines()[-1] == f"ended early: runs/a: {run.why}"
    assert json.loads(cli("runs", "list", "--json")[1])[0]["why"] == run.why
    assert cli("runs", "show", "runs/a")[1].splitlines()[1] == f"ended early: {run.why}"


def test_without_a_folder_runs_says_so(cli) -> None:
    assert cli("runs", "list")[2] == "Error: There is no folder runs here. Say where to look.\n"


def test_a_methods_page(cli) -> None:
    code, out, _ = cli("methods", "scaffold")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "arXiv:1910.06378" in out
    assert "weights = uniform" in out
    assert "(eq. 3)" in out
    assert "its variate starts at zero again" in out
    assert "`" not in out, "a terminal has no type for code"
    facts = json.loads(cli("methods", "feddua:fedprox", "--json")[1])
    assert facts["costs"]["up"] > 1
    assert "Did you mean 'fedprox'" in cli("methods", "fedpox")[2]


def test_personal_accuracy_has_one_name_for_people_and_keeps_its_keys(cli) -> None:
    _, out, _ = cli("run", "quickstart", "--set", "method=ditto", "--rounds", "1", "--out", "run")
    assert re.search(r"personal accuracy \d+\.\d %", out)
    _, out, _ = cli("runs", "show", "run")
    assert re.search(r"^personal accuracy mean +\d+\.\d % *$", out, re.MULTILINE)
    assert "own model" not in out
    shown = json.loads(cli("runs", "show", "run", "--json")[1])["measures"]
    assert "own model's accuracy mean" in shown
    assert cli("runs", "show", "run", "--metric", "accuracy")[1] == cli("runs", "show", "run")[1]
    asked = cli("runs", "show", "run", "--metric", "personal_accuracy")[1].splitlines()
    last = shown["own model's accuracy (last round)"]
    assert asked[1].split() == ["personal", "accuracy", "(last", "round)", f"{100 * last:.1f}", "%"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fedavg", (1, 1, 0, 0, 0)),
        ("scaffold", (2, 2, 1, 0, 1)),
        ("feddc", (2, 2, 2, 0, 2)),
        ("fedavgm", (1, 1, 1, 0, 0)),
        ("mifa", (1, 1, 1, 1, 0)),
        ("ditto", (1, 1, 0, 0, 1)),
        ("fedadam", (1, 1, 2, 0, 0)),
    ],
)
def test_costs_are_those_of_the_page_on_baselines(name: str, expected: tuple[int, ...]) -> None:
    found = costs(METHODS.make(name))
    assert found is not None
    assert found[:5] == pytest.approx(expected, abs=0.01)


def test_every_method_can_tell_its_costs() -> None:
    assert all(costs(entry.factory()) is not None for entry in METHODS)


@pytest.mark.usefixtures("some")
def test_the_run_in_the_current_folder_is_removed(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("runs/deep/fedavg")
    code, out, err = cli("runs", "rm", ".", "--yes")
    assert (code, out.strip(), err) == (0, "removed: 1 run", "")
    assert not list(Path().iterdir())


@pytest.mark.usefixtures("some")
def test_paths_are_never_broken(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = "runs/" + "a-rather-long-name-of-a-folder/" * 3 + "fedavg"
    Path(place).parent.mkdir(parents=True)
    Path("runs/deep/fedavg").rename(place)
    narrow = cli("runs", "list")[1].splitlines()
    assert f"  {place}" in narrow  # a line of its own, whole
    assert max(len(line) for line in narrow if place not in line) <= 80
    monkeypatch.delenv("COLUMNS")  # a pipe has no width
    piped = cli("runs", "list")[1].splitlines()
    assert len(piped) == 3
    assert {line.split()[-1] for line in piped[1:]} == {"runs/deep/fedprox", place}
    assert piped[0].split() == ["changed", "method", "data", "seed", "rounds", "accuracy", "run"]
    assert "accuracy (last round)" in cli("runs", "show", place)[1]
