"""Sentences in a terminal of any width."""

from __future__ import annotations

import io

from counterpoise.cli.screen import Console
from counterpoise.cli.tables import output, print_told

TOLD = ["warning: ahead of fedprox by 0.14, which cannot be told from noise: [-1.63, +1.91], p = 0.5 [bold]", "short"]


def printed(told: list[str], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    print_told(told, console)
    return console.file.getvalue().splitlines()


def test_sentences_are_wrapped_to_the_terminal_and_lose_nothing() -> None:
    lines = printed(TOLD, 40)
    assert max(map(len, lines)) <= 40
    assert [line.startswith("  ") for line in lines] == [False, True, True, False]
    assert " ".join(line.strip() for line in lines) == " ".join(TOLD)


def test_a_command_is_not_wrapped_and_neither_is_a_pipe(monkeypatch) -> None:
    command = "to finish: counterpoise resume runs/a-rather-long-name-of-a-folder --jobs 2"
    assert printed([command], 40) == [command]
    monkeypatch.delenv("COLUMNS", raising=False)
    assert printed(TOLD, output().width) == TOLD
