"""The short tables of methods and presets, and how long listings are paged."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from counterpoise.cli import main
from counterpoise.cli.overview import GROUPS, Line, about, grouped_methods, grouped_presets, short_table
from counterpoise.methods import METHODS
from counterpoise.presets import preset_names


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["counterpoise", *words])
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0), *capsys.readouterr()

    return call


def test_what_is_read_from_the_source_is_what_is_registered() -> None:
    read = {(group, *line) for group, lines in grouped_methods().items() for line in lines}
    assert read == {(entry.group, entry.name, entry.summary) for entry in METHODS}
    assert [*grouped_methods()] == [*GROUPS]


def test_every_preset_or_the_one_it_is_made_from_has_a_sentence() -> None:
    groups = grouped_presets(preset_names(), about)
    listed = [line.name for lines in groups.values() for line in lines]
    assert {name.removesuffix("-small") for name in preset_names()} == {*listed}
    assert len(listed) == len({*listed})
    assert all(line.sentence for lines in groups.values() for line in lines)
    assert [line.name for line in next(iter(groups.values()))] == ["demo", "quickstart"]
    assert [line.name for line in grouped_presets(["a/b-small"], str)["a"]] == ["a/b-small"]


def test_a_sentence_goes_below_its_name_if_forty_columns_are_not_left() -> None:
    groups = {"drift": [Line("one", "A sentence of " + "words " * 8), Line("a-long-name", "")]}
    wide, narrow = ("\n".join(text.plain for text in short_table(groups, width)) for width in (55, 54))
    assert wide == (
        "drift  clients with unlike data pull apart\n"
        "  one          A sentence of words words words words\n"
        "               words words words words\n"
        "  a-long-name  \n"
    )
    assert narrow == (
        "drift  clients with unlike data pull apart\n"
        "  one\n    A sentence of words words words words words words\n    words words\n"
        "  a-long-name\n    \n"
    )


@pytest.mark.parametrize("width", ["60", "80"])
@pytest.mark.parametrize("words", [["methods"], ["presets"], ["presets", "feda4/table-1"]])
def test_listings_begin_with_a_table_and_keep_to_the_width(cli, monkeypatch, words, width) -> None:
    monkeypatch.setenv("COLUMNS", width)
    code, out, err = cli(*words)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= int(width)
    assert re.search(r"^  (fedavg|quickstart|feda4/table-1-fmnist)\b", out, re.M)


def test_in_a_pipe_each_method_has_one_line(cli, monkeypatch) -> None:
    monkeypatch.delenv("COLUMNS")
    lines = cli("methods")[1].splitlines()
    assert all(any(line.split() == [e.name, *e.summary.split()] for line in lines) for e in METHODS)


@pytest.mark.parametrize(("rows", "paged"), [(200, False), (20, True)])
def test_a_listing_that_is_taller_than_the_terminal_is_paged(tmp_path: Path, rows: int, paged: bool) -> None:
    ours, theirs = pty.openpty()
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho PAGER\ncat\n")
    pager.chmod(0o755)
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": str(rows), "PAGER": str(pager)}
    command = [sys.executable, "-m", "counterpoise", "methods"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += (some := os.read(ours, 4096))
        except OSError:
            break
        if not some:
            break
    os.close(ours)
    assert process.wait(timeout=60) == 0
    assert shown.startswith(b"PAGER") is paged
    assert shown.count(b"trimmed-mean") == 1
