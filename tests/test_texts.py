"""Text that anybody may have written: limits on what is read, and no control characters in what is shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from counterpoise import texts
from counterpoise.errors import CounterpoiseError, brief
from counterpoise.texts import Malformed, clean, parse_json, parse_toml, read_lines, read_text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, "nested more than 40 deep"),
        ("a = " + "[" * 100 + "]" * 100, "nested more than 40 deep"),
        (".".join("a" * 50_000) + " = 1", "nested more than 40 deep"),
        (" . ".join(['"b c"'] * 50_000) + " = 1", "nested more than 40 deep"),
        ("[" + ".".join("a" * 42) + "]", "nested more than 40 deep"),
        ("a = " + "9" * 5000, "whole number that is too large"),
        ("a = 0x" + "f" * 5000, "whole number that is too large"),
        (f"a = [[{2**63}]]", "whole number that is too large"),
        ("a = = 1", "is not valid TOML"),
    ],
)
def test_toml_that_no_person_writes_is_refused_in_a_sentence(text: str, why: str) -> None:
    with pytest.raises(CounterpoiseError, match=f"here .*{why}"):
        parse_toml(text, "here")


def test_toml_of_a_sane_size_is_read() -> None:
    numbers = ", ".join(f"{i}.5" for i in range(200))
    found = parse_toml(f"a.b.c = {-(2**63)}\nd = [{numbers}]\n[e.f]\ng = 'x.y. z'", "here")
    assert found["a"]["b"]["c"] == -(2**63)
    assert found["d"][199] == 199.5
    assert found["e"] == {"f": {"g": "x.y. z"}}


@pytest.mark.parametrize(
    ("text", "why"),
    [("[" * 100_000, "nested more than 40 deep"), ("9" * 5000, "too large"), ("{", "is not valid JSON")],
)
def test_json_that_cannot_be_parsed_is_told_in_a_sentence(text: str, why: str) -> None:
    with pytest.raises(CounterpoiseError, match=why):
        parse_json(text, "here")


def test_only_grammar_is_malformed() -> None:
    with pytest.raises(Malformed):
        parse_json("{", "here")
    with pytest.raises(CounterpoiseError) as told:
        parse_json("[" * 100_000, "here")
    assert not isinstance(told.value, Malformed)


def test_a_file_is_read_up_to_its_limit_and_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("x" * 100)
    assert read_text(path, 100) == "x" * 100
    with pytest.raises(CounterpoiseError, match="larger than the 99 bytes"):
        read_text(path, 99)
    monkeypatch.setattr(texts, "MOST_LINE", 99)
    path.write_text("short\n" + "x" * 100 + "\n")
    lines = read_lines(path)
    assert next(lines) == "short"
    with pytest.raises(CounterpoiseError, match="a line of more than 99 bytes"):
        next(lines)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_or_a_device_is_no_file_to_wait_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(CounterpoiseError, match="it is not a plain file"):
            read_text(path)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\ttext", "plain\n\ttext"),
        ("grün ± …", "grün ± …"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("back\rover", r"back\rover"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_could_steer_a_terminal_is_written_out(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_a_long_value_is_cut_in_a_sentence() -> None:
    assert brief("x" * 10_000).endswith("... (10002 characters)")
    assert len(brief("x" * 10_000)) < 240
