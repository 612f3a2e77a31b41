"""Hostile input on the command line: each ends in one sentence and a status that is not 0, and takes no memory."""

from __future__ import annotations

import gzip
import json
import re
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from kept import keep
from rich.text import Text

from counterpoise.cli import main, screen
from counterpoise.runs.folder import Folder

ESCAPE = "\x1b]0;owned\x07\x1b[2J"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path / "data"))

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["counterpoise", *words])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return call


def bomb(path: Path) -> None:
    """A small archive whose array claims to be 10^15 bytes long."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("x_train", "y_train"):
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (10**15,)})
                file.write(bytes(1000))


def files(folder: Path) -> None:
    """What the commands below are given."""
    (folder / "deep.toml").write_text("a = " + "[" * 10_000)
    (folder / "dotted.toml").write_text(".".join("a" * 100_000) + " = 1")
    (folder / "huge.toml").write_bytes(b"#" * (8 * 2**20 + 1))
    (folder / "digits.toml").write_text("rounds = " + "9" * 5000)
    (folder / "hex.toml").write_text("rounds = 0x" + "f" * 5000)
    (folder / "file").write_text("")
    bomb(folder / "bomb.npz")
    np.savez(folder / "objects.npz", x_train=np.array([{}]), y_train=np.array([1]))
    keep(folder / "good", rounds=2)
    for name, file, text in (
        ("config", "config.toml", "a = " + "[" * 10_000),
        ("lines", "metrics.jsonl", '{"schema": 1}\n' + "[" * 100_000 + "\n"),
        ("escape", "config.toml", f"rounds = {json.dumps(ESCAPE)}"),
    ):
        keep(folder / f"bad-{name}", rounds=2)
        (folder / f"bad-{name}" / file).write_text(text)


SET = ["run", "quickstart", "--rounds", "1", "--set"]


@pytest.mark.parametrize(
    "words", [["run", "quickstart", "--rounds", "9" * 5000], ["x" * 5000], ["run", "--" + "x" * 5000]]
)
def test_a_long_word_is_not_quoted_whole(cli, words: list[str]) -> None:
    left, _, err = cli(*words)
    assert left == 2
    assert len(err.splitlines()) < 12
    assert len(err) < 1200


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "deep.toml"], "deep.toml cannot be read: its tables or lists are nested more than 40 deep"),
        (["run", "dotted.toml"], "dotted.toml cannot be read: its tables or lists are nested more than 40 deep"),
        (["run", "huge.toml"], "huge.toml is larger than the 8388608 bytes"),
        (["run", "digits.toml"], "digits.toml cannot be read: it holds a whole number that is too large"),
        (["run", "hex.toml"], "hex.toml cannot be read: it holds a whole number that is too large"),
        ([*SET, "rounds=" + "9" * 5000], "whole number that is too large"),
        ([*SET, "local.epochs=" + "[" * 5000], "nested more than 40 deep"),
        ([*SET, "method=" + "feddua:" * 5000 + "fedavg"], "wraps 5000 entries around one; at most 8 are allowed"),
        (["methods", "feddua:" * 5000 + "fedavg"], "wraps 5000 entries around one; at most 8 are allowed"),
        ([*SET, "method=" + "x" * 100_000], "There is no method 'xxx"),
        ([*SET, "local.epochs=100000000000000000000"], "whole number that is too large"),
        ([*SET, "local.epochs=10000000000"], "local: epochs must be a whole number from 1 to 1000000000"),
        ([*SET, "local.epochs=1000000000"], "steps of 16 samples in a round take"),
        ([*SET, "local.steps=10000000000"], "local: steps must be a whole number from 1 to 1000000000"),
        ([*SET, "local.batch=10000000000"], "local: batch must be a whole number from 1 to 1000000000"),
        ([*SET, "engine.threads=1000000"], "engine: threads must be a whole number from 1 to 4096"),
        ([*SET, "evaluation.batch=10000000000"], "evaluation: batch must be a whole number from 1 to 1000000000"),
        (["run", "quickstart", "--rounds", "10000000000"], "rounds must be a whole number from 1 to 1000000000"),
        ([*SET, "model.hidden=10000000000"], "The model takes 3 TB, and training it at least 12 TB (4 copies)"),
        ([*SET, "model.hidden=9000000000000000"], "The model takes 2.7e+06 TB"),
        ([*SET, "model.hidden=10000000000000000"], "numbers over 9007199254740992 are taken for a mistake"),
        ([*SET, "data=bomb.npz"], "bomb.npz is damaged: the header of its array x_train claims"),
        ([*SET, "data=objects.npz"], "holds Python objects, which are not loaded"),
        (["data", "show", "mnist"], "it holds more than 1000 bytes, which no published file does"),
        (["data", "get", "cifar10"], "cannot be written"),
        (["run", "quickstart", "--rounds", "1", "--out", "file/run"], "The folder file/run cannot be made"),
        (["compare", "quickstart", "--methods", "fedavg", "--out", "file/all"], "The folder file/all cannot be made"),
        (["report", "good", "--out", "file/report.html"], "There is no folder file for the report."),
        (["resume", "bad-config"], "bad-config/config.toml cannot be read"),
        (
            ["report", "bad-lines"],
            "bad-lines/metrics.jsonl cannot be read: its tables or lists are nested more than 40 deep",
        ),
        (["runs", "show", "bad-escape"], "bad-escape/config.toml is damaged"),
        (["runs", "compare", "good", "bad-lines"], "bad-lines/metrics.jsonl cannot be read"),
    ],
)
def test_hostile_input_ends_in_one_sentence(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    files(tmp_path)
    if words[:2] == ["data", "show"]:
        monkeypatch.setattr("counterpoise.federation.readers.bytes.MOST", 1000)
        for part in ("train", "t10k"):
            for what in ("images-idx3", "labels-idx1"):
                path = tmp_path / "data" / "mnist" / f"{part}-{what}-ubyte.gz"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(gzip.compress(bytes(10**6)))
    if words[:2] == ["data", "get"]:
        (tmp_path / "data").write_text("a file in place of the folder")
    left, _, err = cli(*words)
    told = [line for line in err.splitlines() if not line.startswith("WARNING")]
    assert left in (1, 2)
    assert len(told) == 1
    assert told[0].startswith("Error: ")
    assert sentence in told[0]
    assert len(told[0]) < 1000
    assert not re.search("[\x00-\x08\x0b-\x1f]", err)


def test_a_file_that_unpacks_to_more_than_the_memory_is_not_unpacked(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "large.npz", x_train=np.zeros((10, 10**6), "u1"), y_train=np.zeros(10, "u1"))
    monkeypatch.setattr("counterpoise.federation.readers.arrays.machine_memory", lambda: 10**7)
    code, _, err = cli("data", "show", "large.npz")
    assert code == 2
    assert "large.npz unpacks to 10 MB, more than half of this machine's memory (5 MB)." in err


def test_a_folder_that_is_forbidden_is_told_whatever_is_done_with_it(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path / "good", rounds=2)

    def forbidden(*_):
        raise PermissionError(13, "Permission denied", "good/.lock")

    monkeypatch.setattr(Folder, "open", forbidden)
    code, _, err = cli("resume", "good")
    assert code == 2
    assert err == "Error: good/.lock: Permission denied. Check that the folder can be read and written.\n"


def test_too_little_memory_is_told(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*_):
        raise RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4e15 bytes"
        )

    monkeypatch.setattr("counterpoise.cli.running.run_setup", greedy)
    code, _, err = cli("run", "quickstart", "--rounds", "1")
    assert code == 2
    assert err.startswith("Error: This machine does not have enough memory for this.")


def test_one_bad_folder_among_many_is_listed_with_its_reason_and_nothing_is_printed_raw(cli, tmp_path: Path) -> None:
    files(tmp_path)
    keep(tmp_path / "named", rounds=2)
    config = (tmp_path / "named" / "config.toml").read_text()
    (tmp_path / "named" / "config.toml").write_text(config.replace('"fedavg"', json.dumps(f"x{ESCAPE}")))
    code, out, err = cli("runs", "list", ".")
    assert (code, err) == (0, "")
    assert re.search(r"^unreadable: bad-config/config.toml cannot be read: its tables or lists are nested", out, re.M)
    assert re.search(r"^unreadable: bad-lines/metrics.jsonl cannot be read", out, re.M)
    assert out.count("unreadable:") == 3
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "good" in out
    listed = {run["folder"]: run for run in json.loads(cli("runs", "list", ".", "--json")[1])}
    assert listed["good"]["status"] == "finished"
    assert listed["bad-config"]["status"] == "unreadable"
    assert "deep" in listed["bad-config"]["sentence"]
    code, out, _ = cli("runs", "show", "named")
    assert code == 0
    assert "\x1b" not in out
    assert cli("report", "named")[0] == 0
    assert "\x1b" not in (tmp_path / "named" / "report.html").read_text().partition("<script")[0]


def test_a_name_with_escapes_or_of_another_form_keeps_the_columns(cli, tmp_path: Path) -> None:
    for name, method in (("a", {"name": ESCAPE + "\n\t"}), ("b", [{"name": "fedavg"}])):
        keep(tmp_path / name, rounds=2)
        values = tomllib.loads((tmp_path / name / "config.toml").read_text())
        (tmp_path / name / "config.toml").write_text(tomli_w.dumps(values | {"method": method}))
    left, out, _ = cli("runs", "list", ".")
    assert left == 0
    assert len({line.index("digits") for line in out.splitlines()[1:]}) == 1
    assert len(out.splitlines()) == 3


def test_a_terminals_own_styles_pass_and_those_of_a_text_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    console = screen.Console(force_terminal=True, width=40)
    console.print(Text.assemble(("bold", "bold"), f" {ESCAPE}"))
    shown = capsys.readouterr().out
    assert "\x1b[1mbold\x1b[0m" in shown
    assert ESCAPE[:4] not in shown
    assert r"\x1b]0;owned" in shown


def test_commands_print_through_the_one_module_that_cleans() -> None:
    for path in Path(screen.__file__).parent.glob("*.py"):
        if path.name != "screen.py":
            assert not re.search(r"typer\.echo\(|from rich\.console import .*\bConsole\b", path.read_text()), path
