"""The command line as a user meets it: output, sentences, Ctrl-C and kill."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from counterpoise.cli import main, running
from counterpoise.cli.running import _rejected
from counterpoise.comparisons.collection import read_run
from counterpoise.errors import CounterpoiseError
from counterpoise.memory import bytes_in_words
from counterpoise.methods import METHODS
from counterpoise.runs import resume
from counterpoise.runs.build import setup
from counterpoise.runs.config import override, parse, read
from counterpoise.runs.starting import run_setup
from counterpoise.verdict import Action, Verdict

LONG = ["--set", "local.epochs=6", "--rounds", "12", "--out", "run"]


def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    """Run a command in this process: exit code, standard output, standard error."""
    monkeypatch.setattr(sys, "argv", ["counterpoise", *words])
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *words: call(capsys, monkeypatch, *words)


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "counterpoise", *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_round(folder: Path, round: int) -> None:
    metrics = folder / "run" / "metrics.jsonl"
    for _ in range(1200):
        if metrics.exists() and len(metrics.read_text().splitlines()) > round:
            return
        time.sleep(0.05)
    raise AssertionError("the run did not get going")


def metrics(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "memory")} for line in lines]


def test_methods_lists_every_method_with_its_paper_and_options(cli) -> None:
    code, out, _ = cli("methods", "--all")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for entry in METHODS:
        assert len(re.findall(rf"^ +{entry.name}  ", out, re.M)) == 2  # in the short table, and in full
        assert all(f"{p.name} = {p.default}" in out for p in entry.parameters.values() if not p.option.inner)
    assert "gate_turn" not in out
    assert "and 20 numbers inside its parts: counterpoise methods counterpoise" in out
    whole, numbers = cli("methods", "counterpoise")[1].split("numbers inside its parts, which nobody needs to set")
    assert "gate = True" in whole
    assert "gate_turn" not in whole
    assert all(f"{p.name} = {p.default}" in whole + numbers for p in METHODS["counterpoise"].parameters.values())
    code, out, _ = cli("methods", "--json")
    listed = json.loads(out)
    assert [m["name"] for m in listed] == [entry.name for entry in METHODS]
    prox = next(m for m in listed if m["name"] == "fedprox")
    assert prox["options"][0] == {
        "name": "mu",
        "takes": "a number at least 0",
        "default": 0.01,
        "required": False,
        "meaning": "strength of the pull",
        "inner": False,
    }
    assert prox["paper"]["year"] == 2020


def test_run_ends_with_one_json_object_on_the_last_line(cli) -> None:
    code, out, err = cli("run", "quickstart", "--set", "method=fedprox", "--rounds", "3", "--seed", "5", "--json")
    found = json.loads(out.splitlines()[-1])
    assert (code, err) == (0, "")
    assert (found["method"], found["rounds"], found["seed"], found["status"]) == ("fedprox", 3, 5, "finished")
    assert 0 <= found["accuracy"] <= 1
    assert found["seconds"] > 0
    assert Path(found["out"], "config.toml").exists()


def test_run_tells_a_person_what_it_found_and_where_it_is(cli) -> None:
    code, out, err = cli("run", "quickstart", "--rounds", "2")
    assert (code, err) == (0, "")
    assert re.match(r"fedavg: accuracy \d+\.\d %, loss [\d.]+ after 2 rounds in [\d.]+ s\n", out)
    assert "kept in: runs/quickstart-fedavg-0" in out
    assert cli("run", "quickstart", "--rounds", "1")[1].endswith("kept in: runs/quickstart-fedavg-0-2\n")


def test_run_prints_verdicts_and_whose_claims_were_rejected(cli, tmp_path: Path) -> None:
    file = tmp_path / "liar.toml"
    words = ("--rounds", "5", "--set", "method.patience=1", "--set", "local.batch=8")
    code, out, err = cli("run", "quickstart", "--set", "method=feddua:fedprox", *words, "--out", "honest")
    assert (code, err) == (0, "")
    assert re.search(
        r"^verdicts: \d+ accepted, 0 corrected, 0 warned, 0 excluded\nkept in: honest\n  why, .*: clients.jsonl there$",
        out,
        re.M,
    )
    assert "claims rejected" not in out
    text = Path("honest", "config.toml").read_text()
    file.write_text(text + '\n[[adversary]]\nname = "claims"\nfactor = 6.0\nclients = [2]\n')
    code, out, err = cli("run", str(file), "--out", "lied")
    assert (code, err) == (0, "")
    assert re.search(r"^verdicts: \d+ accepted, 1 corrected, 0 warned, \d+ excluded", out, re.M)
    assert re.search(r"^claims rejected of clients: 2$", out, re.M)
    found = json.loads(cli("run", str(file), "--out", "again", "--json")[1].splitlines()[-1])
    assert found["method"] == "feddua:fedprox"
    assert found["rejected"] == found["excluded"] + 1


def test_updates_that_are_left_out_are_no_claims() -> None:
    def verdict(action: Action, estimated: float | None = None, z: float | None = None) -> Verdict:
        return Verdict(10.0, estimated, None, None, z, action)

    first = {0: verdict("excluded", z=9.0), 1: verdict("corrected", 5.0, 9.0), 2: verdict("accepted", z=0.1)}
    second = {0: verdict("excluded", z=9.0), 3: verdict("warned"), 4: verdict("excluded", z=8.0)}
    rounds = [SimpleNamespace(outcome=SimpleNamespace(verdicts=found)) for found in (first, second)]
    assert _rejected(SimpleNamespace(rounds=rounds, client_names=["a", "b", "c", "d", "e"])) == [
        "claims rejected of clients: b, d",
        "updates left out of clients: a, e",
    ]


def test_a_file_runs_like_a_preset(cli, tmp_path: Path) -> None:
    first = json.loads(cli("run", "quickstart", "--rounds", "2", "--out", "a", "--json")[1])
    second = json.loads(cli("run", "a/config.toml", "--out", "b", "--json")[1])
    assert second["accuracy"] == first["accuracy"]
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["run", "quickstart", "--set", "method=fedpox"], 2, "There is no method 'fedpox'. Did you mean 'fedprox'?"),
        (["run", "quickstart", "--set", "method.mu=1"], 2, "There is no option 'mu' of method fedavg. Known: lr."),
        (
            ["run", "quickstart", "--set", "method=fedprox", "--set", "method.mu=-1"],
            2,
            "option mu must be a number at least 0, not -1",
        ),
        (
            ["run", "quickstart", "--set", "local.optimizer.nesterov=False"],
            2,
            "option nesterov must be true or false, not 'False'",
        ),
        (["run", "quickstart", "--set", "data=mnst"], 2, "There is no data set 'mnst'."),
        (
            ["run", "quickstart", "--set", "data.partition.clients=5000"],
            2,
            "partition dirichlet cannot give each of 5000 clients 2 samples",
        ),
        (
            ["run", "quickstart", "--set", "model=lenet5"],
            2,
            "model lenet5 takes images of at least 12 x 12 pixels; these are 8 x 8",
        ),
        (
            ["run", "quickstart", "--set", "cohort=50"],
            2,
            "cohort must be from 0 (nobody) to the 20 clients there are, not 50",
        ),
        (["run", "quickstart", "--set", "engine.device=cuda:99x"], 2, "there is no device 'cuda:99x'"),
        (["run", "quickstart", "--set", "local.optimizer.lr=1e30"], 1, "Training diverged"),
        (
            ["run", "quikstart"],
            2,
            "There is no preset 'quikstart' (a file's name ends in .toml). Did you mean 'quickstart'?",
        ),
        (["run", "zzz"], 2, "There is no preset 'zzz' (a file's name ends in .toml). counterpoise presets lists them."),
        (["runs", "show", "runz"], 2, "There is no folder runz."),
        (
            ["run", "quickstart", "--target", "90"],
            2,
            "--target takes an accuracy between 0 and 1, such as 0.9, not 90.",
        ),
        (["run", "quickstart", "--target", "nan"], 2, "such as 0.9, not nan."),
        (
            ["run", "quickstart", "--set", "method.mu=0.1", "--set", "method=fedprox"],
            2,
            "'method=fedprox' would drop method.mu, which is set before it. Set method first.",
        ),
        (["run", "missing.toml"], 2, "There is no file missing.toml."),
        (["run", "empty.toml"], 2, "empty.toml: the setting rounds is missing."),
        (["run", "quickstart", "--set", "stop.above=0.5"], 2, "the setting stop.metric is missing."),
        (["run", "quickstart", "--set", "stop.abve=0.5", "--set", "stop.metric=loss"], 2, "Did you mean 'stop.above'?"),
        (["run", "broken.toml"], 2, "broken.toml is not valid TOML"),
        (["run", "binary.toml"], 2, "binary.toml cannot be read"),
        (["resume", "nowhere"], 2, "nowhere holds no run: there is no config.toml in it."),
        (["run", "."], 2, ". is a folder. Give a preset's name (counterpoise presets lists them) or a TOML file;"),
        (["run", "quickstart", "--out", "file"], 2, "file cannot be made"),
    ],
)
def test_a_mistake_gets_one_sentence_and_no_traceback(
    cli, tmp_path: Path, words: list[str], code: int, sentence: str
) -> None:
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "broken.toml").write_text("rounds = = 3")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "file").write_text("")
    left, out, err = cli(*words)
    assert left == code
    assert out == ""
    assert err.startswith("Error: ")
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "quickstart", "--cohort", "5"], "No such option '--cohort'. It is a setting: use --set cohort=VALUE."),
        (["sweep", "quickstart", "--device", "cpu"], "It is a setting: use --set engine.device=VALUE."),
        (["compare", "quickstart", "--method", "moon"], "Did you mean '--methods' or"),
        (["report", "runs", "--cohort", "5"], "No such option '--cohort'."),
    ],
)
def test_a_setting_taken_for_an_option_is_told_how_to_set_it(cli, words: list[str], sentence: str) -> None:
    code, out, err = cli(*words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert ("--set" in err) == (words[0] != "report")


def test_a_run_that_is_refused_leaves_no_folder_behind(cli, tmp_path: Path) -> None:
    code, _, err = cli("run", "quickstart", "--set", "method=krum", "--set", "cohort=2")
    assert code == 2
    assert err.startswith("Error: method krum needs at least 3 clients a round")
    assert list((tmp_path / "runs").iterdir()) == []


def test_run_names_three_accuracies_and_whom_the_adversary_played(cli) -> None:
    words = ("--rounds", "3", "--set", "adversary=nan", "--set", "adversary.clients=[0, 1, 2, 3, 4, 5]")
    code, out, err = cli("run", "quickstart", *words)
    assert (code, err) == (0, "")
    assert re.search(r"\naccuracy: mean of all \d \d+\.\d %, best \d+\.\d % \(round \d\)\n", out)
    played = [int(c) for c in re.search(r"\ncontrolled by the adversary: (.+)\n", out)[1].split(", ")]
    found = json.loads(cli("run", "quickstart", *words, "--json")[1].splitlines()[-1])
    assert found["liars"] == played
    assert set(played) <= set(range(6))
    assert found["measures"]["accuracy (last round)"] == found["accuracy"]
    assert found["measures"]["accuracy (best round)"] >= found["accuracy"]


def test_run_tells_rounds_and_bytes_to_a_target_that_no_run_keeps(cli) -> None:
    words = ("run", "quickstart", "--rounds", "4", "--set", "evaluation.every=1")
    code, out, err = cli(*words, "--out", "a", "--target", "0.5")
    assert (code, err) == (0, "")
    records = read_run(Path("a")).records
    reached = next(r.round for r in records if r.metrics["accuracy"] >= 0.5)
    sent = sum(r.bytes_up + r.bytes_down for r in records[:reached])
    assert f"\naccuracy 0.5: in round {reached}, after {bytes_in_words(sent)} both ways\n" in out
    assert "target" not in Path("a", "config.toml").read_text()
    found = json.loads(cli(*words, "--out", "b", "--target", "0.5", "--json")[1].splitlines()[-1])["measures"]
    assert (found["rounds to accuracy 0.5"], found["bytes to accuracy 0.5"]) == (reached, sent)
    assert Path("a", "config.toml").read_text() == Path("b", "config.toml").read_text()
    assert "\naccuracy 1: never reached\n" in cli(*words, "--out", "c", "--target", "1")[1]


def test_the_json_of_a_run_with_liars_has_the_error_of_estimated_counts(cli) -> None:
    liar = ("--set", "adversary=claims", "--set", "adversary.factor=6.0", "--set", "adversary.clients=[2]")
    words = ("--set", "method=feddua:fedavg", *liar, "--set", "cohort=20", "--rounds", "3", "--out", "a", "--json")
    found = json.loads(cli("run", "quickstart", *words)[1].splitlines()[-1])
    sizes = json.loads(Path("a", "federation.json").read_text())["sizes"]
    judged = [pair for record in read_run(Path("a")).records for pair in record.outcome.verdicts.items()]
    errors = [abs(v.estimated - sizes[client]) / sizes[client] for client, v in judged if v.estimated is not None]
    assert found["liars"] == [2]
    assert found["measures"]["detection count error"] == pytest.approx(statistics.median(errors), rel=1e-4)
    shown = json.loads(cli("runs", "show", "a", "--json")[1])["measures"]
    assert shown["detection count error"] == pytest.approx(found["measures"]["detection count error"], rel=1e-4)
    Path("a", "federation.json").unlink()
    assert "detection count error" not in json.loads(cli("runs", "show", "a", "--json")[1])["measures"]


@pytest.mark.usefixtures("without_workers")
def test_a_run_that_nobody_answered_fails(cli) -> None:
    everybody = ("--set", "adversary=crashed", "--set", "adversary.fraction=1.0", "--rounds", "2")
    code, out, err = cli("run", "quickstart", *everybody, "--out", "a", "--json")
    assert code == 1
    assert json.loads(out.splitlines()[-1])["status"] == "failed"
    assert err.startswith("Error: No round trained the model: all 2 rounds were skipped")
    assert " ".join(err.split()).endswith("then give the run more rounds with: counterpoise resume a --rounds 4")
    assert "2/2 failed" in cli("runs", "list", ".")[1].replace("\n", " ")
    shown = cli("runs", "show", "a")[1]
    assert "failed, 2 of 2 rounds\nNo round trained the model" in shown
    code, out, err = cli("compare", "quickstart", "--methods", "fedavg", "--seeds", "1", *everybody, "--out", "c")
    assert code == 1
    assert "fedavg failed: No round trained the model" in out


def test_a_run_of_nothing_but_nan_says_so_once(cli) -> None:
    err = cli("run", "quickstart", "--set", "local.optimizer.lr=1e30", "--rounds", "1")[2]
    assert err.startswith("Error: No round trained the model")
    assert err.count("its update holds NaN or infinity") == 1


def test_a_run_that_diverges_still_ends_with_json(cli) -> None:
    code, out, err = cli("run", "quickstart", "--set", "local.optimizer.lr=1e30", "--json")
    assert code == 1
    assert json.loads(out.splitlines()[-1])["status"] == "diverged"
    assert err.startswith("Error: Training diverged")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """The rounds of the long run if nobody stops it."""
    folder = tmp_path_factory.mktemp("whole")
    values = override(read("quickstart")[0], ["local.epochs=6", "rounds=12"])
    run_setup(setup(parse(values, "quickstart")), out=folder)
    return metrics(folder)


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_resumes_to_the_same_end(cli, tmp_path: Path, uninterrupted: Any) -> None:
    process = start(tmp_path, "run", "quickstart", *LONG)
    wait_for_round(tmp_path, 3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert re.fullmatch(r"Stopped after round \d+ of 12. Continue with: counterpoise resume run\n", err)
    code, out, _ = cli("resume", "run", "--json")
    assert code == 0
    assert json.loads(out)["rounds"] == 12
    assert metrics(tmp_path / "run") == uninterrupted


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_end(cli, tmp_path: Path, uninterrupted: Any) -> None:
    process = start(tmp_path, "run", "quickstart", *LONG)
    wait_for_round(tmp_path, 5)
    process.kill()
    process.communicate(timeout=60)
    assert json.loads(cli("resume", "run", "--json")[1])["status"] == "finished"
    assert metrics(tmp_path / "run") == uninterrupted


@pytest.mark.slow
def test_a_terminal_shows_progress_with_accuracy_and_time_left(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "counterpoise", "run", "quickstart", "--rounds", "12", "--json"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            some = os.read(ours, 4096)
        except OSError:
            break
        if not some:
            break
        shown += some
    out, _ = process.communicate(timeout=60)
    os.close(ours)
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.decode())
    assert re.search(r"fedavg .*\d+/12 accuracy [\d.]+ % \d\d:\d\d", text)
    assert len(out.splitlines()) == 1
    assert json.loads(out)["rounds"] == 12


def test_resuming_a_finished_run_says_that_nothing_was_run(cli) -> None:
    assert cli("run", "quickstart", "--rounds", "2", "--out", "a run")[0] == 0
    said = "The run was already finished, so nothing was run. For more rounds: counterpoise resume 'a run' --rounds 4\n"
    code, out, err = cli("resume", "a run")
    assert (code, err) == (0, "")
    assert out.startswith(said)
    code, out, err = cli("resume", "a run", "--json")
    assert (code, err, json.loads(out)["rounds"]) == (0, said, 2)
    assert "nothing was run" not in cli("resume", "a run", "--rounds", "3")[1]


def test_ctrl_c_is_told_however_early_it_comes(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "start", stop)
    assert cli("run", "quickstart")[::2] == (130, "Stopped.\n")
    monkeypatch.setitem(sys.modules, "counterpoise.cli.app", Stopping())
    assert cli("run", "quickstart")[::2] == (130, "Stopped.\n")


class Stopping:
    """A module that Ctrl-C interrupts while it is loaded."""

    def __getattr__(self, name: str) -> None:
        raise KeyboardInterrupt


@pytest.mark.usefixtures("without_workers")
def test_a_run_is_resumed_from_another_folder_than_it_was_begun_in(cli, tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home, elsewhere):
        folder.mkdir()
    rows = [f"{i % 7},{i % 5},s{i % 3},{i % 2}" for i in range(60)]
    (home / "t.csv").write_text("\n".join(["a,b,who,y", *rows]))
    (home / "e.toml").write_text(
        'rounds = 1\nmodel = "mlp"\nmethod = "fedavg"\n[data]\nname = "t.csv"\ntest = 0.2\npartition = "natural"\n'
        'columns = {targets = "y", identity = "who"}\n'
    )
    os.chdir(home)
    assert cli("run", "e.toml", "--out", "r")[0] == 0
    assert cli("compare", "e.toml", "--methods", "fedavg", "--seeds", "1", "--out", "c")[0] == 0
    os.chdir(elsewhere)
    with pytest.raises(CounterpoiseError, match=f"its data, t.csv, is not here but in {re.escape(str(home))}"):
        resume("../home/r", rounds=2)
    code, out, err = cli("resume", "../home/r", "--rounds", "2")
    assert (code, err) == (0, f"t.csv is not here, so this continues in {home}, where it is.\n")
    assert f"kept in: {home / 'r'}" in out
    os.chdir(elsewhere)
    shutil.rmtree(home / "c" / "fedavg")
    assert cli("resume", "../home/c")[0] == 0
    assert read_run(home / "c" / "fedavg" / "seed-0").settings["data"]["name"] == "t.csv"
    assert list(elsewhere.iterdir()) == []
