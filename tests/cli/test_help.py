"""The help, completion, and words that are no command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from counterpoise.cli import main
from counterpoise.cli.app import app
from counterpoise.cli.completing import (
    complete_data_set,
    complete_method,
    complete_methods,
    complete_preset,
    complete_setting,
)
from counterpoise.cli.settings import setting_keys
from counterpoise.runs.config import Config, StopConfig
from counterpoise.runs.places import CHOICES, _places


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """What a command prints."""
    monkeypatch.setattr(sys, "argv", ["counterpoise", *words])
    with pytest.raises(SystemExit):
        main()
    return "".join(capsys.readouterr())


@pytest.mark.parametrize("width", [60, 80])
def test_the_help_lists_every_command_and_run_first(capsys, monkeypatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = said(capsys, monkeypatch, "--help")
    assert max(map(len, out.splitlines())) <= width
    listed = re.findall(r"^│ ([a-z]+)  ", out, re.M)
    assert listed[:2] == ["run", "compare"]
    named = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert sorted(listed) == sorted(named | {group.name for group in app.registered_groups})


def test_the_help_says_what_an_argument_is(capsys, monkeypatch) -> None:
    assert "A preset's name or a TOML file." in said(capsys, monkeypatch, "run", "--help")


@pytest.mark.parametrize(("words", "near"), [(["runn"], ["run", "runs"]), (["runs", "lst"], ["list"])])
def test_the_nearest_commands_are_suggested_once(capsys, monkeypatch, words: list[str], near: list[str]) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (line,) = (line for line in said(capsys, monkeypatch, *words).splitlines() if "No such command" in line)
    assert re.findall(r"'([a-z]+)'", line)[1:] == near


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["run", "quickstart", "--rouns", "5"], ["--rounds", "--out"]),
        (["runs", "list", "--jsn"], ["--json", "--since"]),
    ],
)
def test_the_closest_option_is_suggested_first(capsys, monkeypatch, words: list[str], near: list[str]) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (line,) = (line for line in said(capsys, monkeypatch, *words).splitlines() if "No such option" in line)
    assert re.findall(r"'(--[a-z]+)'", line)[1:] == near


def test_what_is_offered_begins_as_typed() -> None:
    assert complete_preset("qui") == ["quickstart"]
    assert complete_preset("my.toml") == []
    assert complete_method("fedpr") == [("fedprox", "FedAvg with a pull of each client towards the server's model.")]
    assert complete_methods("fedavg,sca") == ["fedavg,scaffold"]
    assert complete_data_set("fash") == ["fashion-mnist"]
    assert complete_setting("local.ep") == [("local.epochs=", "Passes over a client's data in a round")]
    assert ("local.optimizer.lr=", "") in complete_setting("local.optimizer.")
    assert [name for name, _ in complete_setting("method=fedpr")] == ["method=fedprox"]


def test_the_settings_offered_are_those_of_the_configuration() -> None:
    read = {key for choice in ("", *CHOICES) for key in setting_keys(choice and f"{choice}.")}
    stops = {f"stop.{name}" for name in StopConfig.model_fields}
    written = {"schema", "data.fingerprint", "frozen", "own", "code", "objects", "stop"}
    true = {key for key in _places(Config) if not key.startswith("paper.")}
    assert read == (true - written) | stops


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_a_preset(tmp_path: Path) -> None:
    program = tmp_path / "counterpoise"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m counterpoise "$@"\n')
    program.chmod(0o755)
    script = """
eval "$(counterpoise --show-completion bash)"
COMP_WORDS=(counterpoise run qui) COMP_CWORD=2
_counterpoise_completion counterpoise
echo "${COMPREPLY[@]}"
"""
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "quickstart\n"
