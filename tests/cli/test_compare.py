"""`compare` and `sweep` as a user meets them: the table, what fails, and interruptions by real signals."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from workers import in_this_process

from counterpoise import reports
from counterpoise.cli import comparing, main
from counterpoise.comparisons.arms import compared, swept
from counterpoise.comparisons.board import plan_board
from counterpoise.comparisons.conduct import News
from counterpoise.comparisons.perform import Workers
from counterpoise.comparisons.plan import read_plan
from counterpoise.errors import CounterpoiseError
from counterpoise.memory import bytes_in_words
from counterpoise.runs.files import Unwritten

SMALL = [
    "--set",
    "local.epochs=1",
    "--set",
    "data.partition.clients=6",
    "--set",
    "cohort=3",
    "--set",
    "engine.threads=1",
]


def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
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


def plain(document: Any) -> Any:
    """A document without what differs from one doing to the next: times and memory."""
    if isinstance(document, dict):
        drop = ("seconds", "peak memory", "report")
        return {key: plain(value) for key, value in document.items() if key not in drop}
    return [plain(value) for value in document] if isinstance(document, list) else document


def files(folder: Path) -> dict[str, Any]:
    """Everything that decides: each round's lines, each configuration and the last checkpoint's state."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{k: v for k, v in line.items() if k not in ("seconds", "memory")} for line in lines]
        elif path.name.startswith("state-") or path.name == "config.toml":
            found[name] = path.read_bytes()
    return found


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("data.name=digit", "There is no data set 'digit'. Did you mean 'digits'?"),
        ("data.partition.name=dirichelt", "There is no partition 'dirichelt'. Did you mean 'dirichlet'?"),
        ("data.partition.alhpa=1", "There is no option 'alhpa' of partition dirichlet. Did you mean 'alpha'?"),
        ("model=mpl", "There is no model 'mpl'. Did you mean 'mlp'?"),
        ("local.optimizer=sdg", "There is no optimizer 'sdg'. Did you mean 'sgd'?"),
        ("adversary=labelflip", "There is no adversary 'labelflip'. Did you mean 'label-flip'?"),
    ],
)
def test_a_misspelt_choice_is_refused_before_anything_is_written(cli, setting: str, said: str) -> None:
    code, out, err = cli("compare", "quickstart", "--set", setting)
    assert (code, out) == (2, "")
    assert " ".join(err.split()).startswith(f"Error: {said}")
    assert not Path("runs").exists()


def test_what_fails_every_method_is_said_once(cli) -> None:
    code, out, _ = cli("compare", "quickstart", "--methods", "fedavg,fedadam", "--seeds", "1", "--set", "cohort=50")
    assert code == 1
    assert out.count("cohort must be from 0") == 1
    assert "fedavg, fedadam failed: cohort must be from 0" in out


@pytest.mark.usefixtures("without_workers")
def test_a_compare_a_failing_method_and_a_sweep(cli) -> None:
    words = ["compare", "quickstart", "--seeds", "2", "--rounds", "2", "--out", "c", "--jobs", "1", *SMALL]
    code, out, err = cli(*words, "--methods", "fedavg,krum(faulty=2), fedprox(mu=0.1)")
    assert code == 1, err
    assert max(map(len, out.splitlines()[:4])) <= 80
    assert re.search(r"^fedavg\s+\d+\.\d\d ± \d+\.\d\d ", out, re.M)
    assert re.search(r"^fedprox\S*\s+\d+\.\d\d ± \d+\.\d\d +[+-]\d+\.\d\d \[", out, re.M)
    assert re.search(r"^krum\S*\s+failed ", out, re.M)
    assert re.search(r"^krum\(faulty=2\) failed: method krum", out, re.M)
    (named,) = set(re.findall(r"See (c/\S+/seed-0/failure\.txt)\.", " ".join(out.split())))
    assert Path(named).read_text().startswith("method krum")
    assert "kept in: c" in out
    before = files(Path("c"))
    assert len([name for name in before if name.endswith("state-2.safetensors")]) == 4
    code, out, _ = cli(*words, "--methods", "scaffold(weights=data)", "--target", "0.01", "--json")
    document = json.loads(out)
    measured = [run["measures"] for run in document["arms"][3]["runs"]]
    assert [found["rounds to accuracy 0.01"] for found in measured] == [1, 1]
    assert all(2 * found["bytes to accuracy 0.01"] == found["bytes up"] + found["bytes down"] for found in measured)
    assert code == 1
    assert [arm["label"] for arm in document["arms"]] == [
        "fedavg",
        "krum(faulty=2)",
        "fedprox(mu=0.1)",
        "scaffold(weights=data)",
    ]
    assert document["open"] == 2  # krum's, which may be mended
    assert {name: document["arms"][3]["seeds"].keys() for name in ("seeds",)} == {"seeds": {"0", "1"}}
    assert document["arms"][2]["difference"]["seeds"] == 2
    assert document["arms"][1]["failed"].keys() == {"0", "1"}
    now = files(Path("c"))
    assert {name: now[name] for name in before} == before
    sent = bytes_in_words(measured[0]["bytes to accuracy 0.01"])
    _, out, _ = cli(*words, "--methods", "scaffold(weights=data)", "--target", "0.01")
    told = (
        f"accuracy 0.01 reached by scaffold(weights=data): in round 1, after {sent} both ways (mean over 2 of 2 seeds) "
    )
    assert told in " ".join(out.split())  # which is wrapped to the terminal
    assert max(map(len, out.splitlines())) <= 80
    assert "accuracy 0.01 reached by krum(faulty=2): never\n" in out
    assert files(Path("c")) == now

    code, out, err = cli(
        "sweep",
        "quickstart",
        "--over",
        "local.optimizer.lr=0.05,0.0000001",
        "--seeds",
        "2",
        "--rounds",
        "2",
        *SMALL,
        "--jobs",
        "1",
    )
    assert code == 0, err
    assert re.search(r"^best: lr=0.05, accuracy \d+\.\d\d %( \[.+\])? over 2 seeds$", out, re.M)
    # Two seeds this far apart: the lead is told, and that it may be noise.
    assert re.search(r"^warning: ahead of lr=1e-07 by \d+\.\d\d, which cannot be told from noise: ", out, re.M)
    assert "\ntwo seeds cannot tell which is better: compare at least 6\n" in out
    assert "kept in: runs/sweep-quickstart" in out


def test_overwrite_replaces_the_comparison_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "_finish", lambda *given: None)
    rest = (Workers(), comparing.Shown())
    short, longer = (compared("quickstart", ["fedavg"], rounds=rounds) for rounds in (2, 3))
    comparing._do(short, tmp_path / "c", False, *rest)
    with pytest.raises(CounterpoiseError, match=r"rounds was 2 and is 3.*--overwrite"):
        comparing._do(longer, tmp_path / "c", False, *rest)
    comparing._do(longer, tmp_path / "c", True, *rest)
    assert read_plan(tmp_path / "c").values["rounds"] == 3


@pytest.mark.usefixtures("without_workers")
def test_a_report_that_cannot_be_written_costs_only_the_report(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object, **named: object) -> None:
        raise Unwritten("c/report.html could not be written: No space left on device.")

    monkeypatch.setattr(reports, "write", full)
    words = (
        "compare",
        "quickstart",
        "--methods",
        "fedavg",
        "--seeds",
        "1",
        "--rounds",
        "1",
        "--out",
        "c",
        "--jobs",
        "1",
    )
    code, out, err = cli(*words, *SMALL)
    assert (code, "No space left on device" in err) == (2, True)
    assert re.search(r"^fedavg +\d", out, re.M)
    assert out.endswith("kept in: c\n")
    code, out, _ = cli(*words, *SMALL, "--json")
    assert (code, json.loads(out)["report"]) == (2, None)


def test_tables_without_a_name_are_swept() -> None:
    plan = swept("quickstart", [], ["evaluation={every=2}", "stop={metric='loss', below=0.1}"], [], 1, 2, "")
    assert [arm.label for arm in plan.arms] == ["evaluation={every=2}", "stop={metric=loss, below=0.1}"]
    assert [arm.slug for arm in plan.arms] == ["evaluation-every=2", "stop-metric=loss-below=0.1"]
    assert plan.arms[0].whole == "evaluation={every=2}"


def test_a_device_that_this_machine_lacks_may_be_planned() -> None:
    plan = compared("quickstart", ["fedavg"], ["engine.device=cuda:7"])
    assert next(plan.pieces(plan.arms[0])).values["engine"]["device"] == "cuda:7"


def test_without_methods_some_usual_ones_are_compared() -> None:
    labels = [arm.label for arm in compared("quickstart", []).arms]
    assert labels == ["fedavg", "fedadam", "scaffold", "feddua", "counterpoise"]


def test_without_methods_a_sources_own_is_among_them(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('like = "quickstart"\nmethod = { name = "fedprox", mu = 0.5 }\n')
    plan = compared(str(file), [])
    usual = ["fedavg", "fedadam", "scaffold", "feddua", "counterpoise"]
    assert [arm.label for arm in plan.arms] == ["fedprox(mu=0.5)", *usual]
    assert next(plan.pieces(plan.arms[0])).values["method"]["mu"] == 0.5


def test_the_options_of_the_workers_are_repeated_in_the_command_that_goes_on() -> None:
    assert Workers(2, 3, "dask:a b").words == ["--jobs", "2", "--together", "3", "--on", "dask:a b"]
    assert Workers().words == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["compare", "quickstart", "--methods", "fedavg,fedpox"],
            "There is no method 'fedpox'. Did you mean 'fedprox'?",
        ),
        (
            ["compare", "quickstart", "--methods", "fedprox(mu=-1)"],
            "method fedprox: option mu must be a number at least 0, not -1.",
        ),
        (["compare", "quickstart", "--methods", "fedprox(mu)"], "takes key=value, such as mu=0.1, not 'mu'."),
        (["compare", "quickstart", "--methods", "fedavg,fedavg"], "fedavg is named twice."),
        (
            ["compare", "quickstart", "--methods", "fedavg", "--set", "method=fedprox"],
            "takes its methods from --methods",
        ),
        (
            ["compare", "quickstart", "--methods", "fedavg", "--set", "method.mu=1"],
            "None of the compared methods has an option mu",
        ),
        (
            ["compare", "quickstart", "--methods", "fedavg", "--baseline", "x"],
            "The baseline must be one of fedavg, not 'x'.",
        ),
        (["compare", "quickstart", "--methods", "fedavg", "--out", "full"], "The folder full is not empty."),
        (
            ["compare", "quickstart", "--methods", "fedavg", "--target", "0"],
            "--target takes an accuracy between 0 and 1, such as 0.9, not 0.",
        ),
        (
            ["compare", "quickstart", "--methods", "fedavg", "--set", "engine.backend=batchd"],
            "There is no backend 'batchd'.",
        ),
        (["sweep", "quickstart", "--over", "engine.chunk=1,0"], "engine: chunk must be a whole number from 1"),
        (["sweep", "quickstart", "--at", "engine.device=gpu"], "there is no device 'gpu'"),
        (["sweep", "quickstart"], "Say what to sweep over"),
        (["sweep", "quickstart", "--over", "method.mu=1,2"], "method fedavg"),
        (["sweep", "quickstart", "--over", "local.epoch=1,2"], "There is no setting 'local.epoch'"),
        (["sweep", "quickstart", "--over", "seed=1,2"], "The seed cannot be swept"),
    ],
)
def test_mistakes_are_told_before_anything_runs(cli, words: list[str], sentence: str) -> None:
    Path("full").mkdir()
    Path("full/file").touch()
    code, _, err = cli(*words)
    assert code == 2
    assert sentence in err
    assert not Path("runs").exists()
    assert "Traceback" not in err
    assert not Path("runs").exists()


COMPARE = ["compare", "quickstart", "--methods", "fedavg,scaffold", "--seeds", "2", "--rounds", "12", "--out", "c", "--jobs", "2", "--json", *SMALL]  # fmt: skip


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "counterpoise", *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(folder: Path) -> int:
    found = 0
    for path in folder.rglob("metrics.jsonl"):
        with contextlib.suppress(FileNotFoundError):  # one that was half made is made anew
            found += path.read_bytes().count(b"\n")
    return found


def wait_for_lines(process: subprocess.Popen[str], folder: Path, count: int) -> None:
    """Until so many rounds are written, at least one of them by this process."""
    before = lines(folder)
    for _ in range(12000):
        if lines(folder) >= max(count, before + 1) or process.poll() is not None:
            return
        time.sleep(0.01)
    raise AssertionError("the comparison did not get going")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("whole")
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, in_this_process(), contextlib.redirect_stdout(out):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["counterpoise", *COMPARE])
        with pytest.raises(SystemExit) as left:
            main()
    assert not left.value.code
    return folder / "c", json.loads(out.getvalue())


@pytest.mark.slow
@pytest.mark.parametrize(("number", "times"), [(signal.SIGINT, 1), (signal.SIGKILL, 2)])
def test_an_interrupted_compare_goes_on_to_the_same_end(
    number: int, times: int, uninterrupted: tuple[Path, Any], cli, tmp_path: Path
) -> None:
    whole, document = uninterrupted
    seed = random.SystemRandom().randrange(2**32)
    points = sorted(random.Random(seed).sample(range(3, 50), times))
    for point in points:
        going = start(tmp_path, *COMPARE)
        wait_for_lines(going, tmp_path, point)
        going.send_signal(number)
        out, err = going.communicate()
        if number == signal.SIGINT and going.returncode:  # not when it was just done
            assert going.returncode == 130, (seed, err)
            assert re.fullmatch(
                r"Stopped with \d of 4 runs done. Continue with: counterpoise resume c --jobs 2\n", err
            ), seed
            assert json.loads(out)["open"] > 0
    with in_this_process():
        code, out, err = cli("resume", "c", "--json")
    assert code == 0, (seed, err)
    assert plain(json.loads(out)) == plain(document), seed
    assert files(tmp_path / "c") == files(whole), seed
    assert not (tmp_path / "c/workers.log").read_text(), seed


@pytest.mark.slow
def test_ctrl_c_at_a_terminal_stops_all_workers_and_keeps_what_they_have(tmp_path: Path) -> None:
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.environ["COLUMNS"] = "80"
        os.execv(sys.executable, [sys.executable, "-m", "counterpoise", *COMPARE, "--rounds", "400"])
    shown = b""
    while b"accuracy" not in shown or not list(tmp_path.rglob("metrics.jsonl")):
        shown += os.read(terminal, 65536)
    os.write(terminal, b"\x03")
    while True:
        try:
            shown += os.read(terminal, 65536)
        except OSError:
            break
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert b"Continue with: counterpoise resume c --jobs 2" in shown
    assert b"Traceback" not in shown
    assert not (tmp_path / "c/workers.log").read_text()
    shutil.rmtree(tmp_path / "c")


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_its_batch_and_no_other(cli, tmp_path: Path) -> None:
    going = start(tmp_path, *COMPARE)
    wait_for_lines(going, tmp_path, 10)
    children = Path(f"/proc/{going.pid}/task/{going.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    out, _ = going.communicate()
    assert going.returncode == 1
    failed = [sentence for arm in json.loads(out)["arms"] for sentence in arm["failed"].values()]
    assert len(failed) == 2  # both seeds of one method
    assert all("ended with status -9" in sentence for sentence in failed)
    with in_this_process():
        code, out, _ = cli(*COMPARE)
    assert code == 0
    assert not any(arm["failed"] for arm in json.loads(out)["arms"])


@pytest.mark.parametrize(
    ("metric", "head", "shown"),
    [("loss", "loss", ["0.25", "0.5"]), ("personal_accuracy", "personal accuracy", ["61.0 %", "72.0 %"])],
)
def test_the_live_table_shows_the_metric_that_is_asked_for(metric: str, head: str, shown: list[str]) -> None:
    plan = compared("quickstart", ["fedavg", "ditto"], [], 1, 2, "")
    board = plan_board(plan, [], 1, metric)
    for arm, values in zip(
        plan.arms,
        ({"accuracy": 0.53, "loss": 0.25, "client_accuracy": 0.61}, {"loss": 0.5, "personal_accuracy": 0.72}),
        strict=True,
    ):
        board.hear(News(next(plan.pieces(arm)), 1, values))
    console = Console(width=100)
    with console.capture() as capture:
        console.print(board.render())
    first, *rows = capture.get().splitlines()
    assert head in first
    assert "53.0 %" not in capture.get()
    assert [value in row for value, row in zip(shown, rows, strict=False)] == [True, True]


def test_the_live_table_shows_personal_models_beside_the_servers() -> None:
    plan = compared("quickstart", ["fedavg", "ditto"], [], 1, 2, "")
    board = plan_board(plan, [], 1)
    for arm, kind in zip(plan.arms, ("client", "personal"), strict=True):
        (piece,) = plan.pieces(arm)
        board.hear(News(piece, 1, {"accuracy": 0.5, f"{kind}_accuracy": 0.61 if kind == "client" else 0.72}))
        board.hear(News(piece, 2, {"accuracy": 0.53}))  # a round that measured no client
    console = Console(width=80)
    with console.capture() as capture:
        console.print(board.render())
    head, fedavg, ditto, *_ = capture.get().splitlines()
    assert "personal" in head
    assert ("53.0 %" in fedavg, "61.0 %" in fedavg) == (True, True)
    assert ("53.0 %" in ditto, "72.0 %" in ditto) == (True, True)
