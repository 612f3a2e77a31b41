"""Sentences in a terminal of any width, and numbers for people."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from kept import keep
from rich.text import Text

from counterpoise.cli.screen import Console, output, print_error, print_told
from counterpoise.cli.shelf import in_words
from counterpoise.cli.tables import lines, named_lines, stand_table
from counterpoise.comparisons.collection import collect
from counterpoise.comparisons.standing import stand
from counterpoise.comparisons.tables import columns

LONG = {"name": "consensus-trust:bounded:fedadam"}
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


def test_no_line_ends_between_a_number_and_its_unit() -> None:
    told = "accuracy 95.5 % after 40 rounds in 4.7 s, 7.7 MB up"
    for width in range(12, len(told)):
        lines = printed([told], width)
        assert " ".join(line.strip() for line in lines) == told
        assert not any(line.split()[0].strip(",") in ("%", "s", "MB") for line in lines)


def test_a_command_is_not_wrapped_and_neither_is_a_pipe(monkeypatch) -> None:
    whole = [f"{word}: counterpoise resume runs/a-rather-long-name --jobs 2" for word in ("to finish", "kept in")]
    assert printed(whole, 40) == whole
    monkeypatch.delenv("COLUMNS", raising=False)
    assert printed(TOLD, output().width) == TOLD


def test_an_error_is_wrapped_at_words_in_a_terminal_alone(monkeypatch) -> None:
    command = "counterpoise resume 'runs/a b/with a rather long name' --jobs 2"
    path = "/srv/data/a-folder-whose-name-is-longer-than-the-terminal/settings.toml"
    told = f"Error: {path} has no setting. Did you mean 'local.optimizer'? It goes on with: {command}\nA second line"

    def shown(terminal: bool) -> list[str]:
        stream = io.StringIO()
        stream.isatty = lambda: terminal
        monkeypatch.setattr("sys.stderr", stream)
        print_error(told)
        return stream.getvalue().splitlines()

    monkeypatch.delenv("FORCE_COLOR", raising=False)
    for width in range(20, 60):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = shown(terminal=True)
        assert " ".join(line.strip() for line in lines) == told.replace("\n", " ")
        assert {f"  {path}", f"  {command}", "A second line"} <= {*lines}
        assert all(len(line) <= width for line in lines if path not in line and command not in line)
        assert shown(terminal=False) == told.splitlines()


def test_a_table_too_wide_for_the_terminal_breaks_no_name_and_no_number(tmp_path: Path) -> None:
    for seed in range(3):
        keep(tmp_path / f"fedavg-{seed}", seed=seed)
        keep(tmp_path / f"long-{seed}", seed=seed, level=0.8, method=LONG)
    found = stand(collect([tmp_path]))
    heads, rows = columns(found)

    def shown(width: int) -> list[str]:
        console = Console(file=io.StringIO(), width=width)
        console.print(stand_table(found, width=width))
        return [line.rstrip() for line in console.file.getvalue().splitlines()]

    whole = shown(200)
    assert len(whole) == 3
    assert all(cell in line for line, row in zip(whole[1:], rows, strict=True) for cell in row)
    wide = max(map(len, whole))
    assert shown(wide) == whole
    for width, cut in ((wide - 1, 0), (60, 1)):
        lines = shown(width)
        assert max(map(len, lines)) <= width
        assert [lines[2], lines[4]] == [row[0] for row in rows]
        assert all(cell in lines[3 + 2 * place] for place, row in enumerate(rows) for cell in row[1:4])
        assert len(lines) == 6 + cut
    assert lines[-1].startswith("left out for want of width: ")
    assert lines[-1].endswith("traffic, seconds")
    assert heads[-2:] == ["traffic", "seconds"]


@pytest.mark.parametrize(
    ("key", "value", "metric", "shown"),
    [
        ("accuracy (last round)", 0.8163, "accuracy", "81.6 %"),
        ("train_accuracy volatility", 0.0123, "accuracy", "1.2 %"),
        ("client accuracy gap", 0.392857, "accuracy", "39.3 %"),
        ("client accuracy clients", 20, "accuracy", "20"),
        ("own model's accuracy mean", 0.9, "accuracy", "90.0 %"),
        ("coupling of weight with client accuracy (mean over rounds)", 0.239989, "accuracy", "0.24"),
        ("loss (last round)", 0.513744, "accuracy", "0.5137"),
        ("brier (last round)", 0.25, "brier", "0.25"),
        ("best round by accuracy", 8, "accuracy", "8"),
        ("rounds to accuracy 1", None, "accuracy", "never"),
        ("bytes to accuracy 0.5", 1_726_080, "accuracy", "1.73 MB"),
        ("bytes up", 1_726_080, "accuracy", "1.73 MB"),
        ("peak memory", 429_916_160, "accuracy", "430 MB"),
        ("detection recall", 0.5, "accuracy", "50.0 %"),
        ("detection auc", 0.5, "accuracy", "0.5"),
        ("seconds", 1.74531, "accuracy", "1.7 s"),
    ],
)
def test_a_measure_is_shown_in_its_unit(key: str, value: float | None, metric: str, shown: str) -> None:
    assert in_words(key, value, metric) == shown


def test_rows_of_a_study_fit_any_terminal_and_break_no_word() -> None:
    heads = ["cell", "method", "ours", "verdict", "source"]
    rows = [["figure 3", "no regulariser", "9.98 ± 0.45", "lower", "section 5.1, a representative run"]]

    def printed_at(width: int) -> list[str]:
        console = Console(file=io.StringIO(), width=width)
        for line in named_lines(heads, rows, width):
            console.print(line)
        return console.file.getvalue().splitlines()

    assert printed_at(81)[1] == "figure 3  no regulariser  9.98 ± 0.45  lower    section 5.1, a representative run"
    assert printed_at(80)[3:] == [
        "figure 3: no regulariser",
        "  9.98 ± 0.45  lower",
        "  section 5.1, a representative run",
    ]
    narrow = printed_at(30)
    assert max(map(len, narrow)) <= 30
    assert (
        " ".join(" ".join(narrow[3:]).split())
        == "figure 3: no regulariser 9.98 ± 0.45 lower section 5.1, a representative run"
    )


def test_a_listing_fits_sixty_columns() -> None:
    heads = ("changed", "method", "data", "seed", "rounds", "accuracy", "run")
    row = ["11-18 07:40", "counterpoise", "organamnist", "4", "14/20 stopped", "28.4 %*", "runs/a/seed-4"]

    def listed(width: int) -> list[str]:
        return "\n".join(line.plain for line in lines(heads, [[*map(Text, row)]], ("seed",), width)).splitlines()

    assert [len(listed(width)) for width in (78, 77)] == [2, 4]
    assert listed(60)[2:] == ["counterpoise organamnist    4 14/20 stopped 28.4 %* ", "  11-18 07:40 runs/a/seed-4"]
    assert max(map(len, listed(60))) <= 60
