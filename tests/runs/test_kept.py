"""Kept files whose fields hold something else: one sentence for each, and nothing computed with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kept import keep

from counterpoise.comparisons.collection import read_run
from counterpoise.errors import CounterpoiseError
from counterpoise.runs.holdings import holdings, true_counts
from counterpoise.runs.index import read_index
from counterpoise.runs.saved import status_of

VERDICT = {"claimed": 1, "estimated": None, "low": None, "high": None, "z": None, "action": "accepted"}


def change(path: Path, number: int, **fields: Any) -> None:
    """Change fields of a line of JSON."""
    lines = path.read_text().splitlines()
    lines[number] = json.dumps({**json.loads(lines[number]), **fields})
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        ("metrics", {"round": "2"}),
        ("metrics", {"round": [2]}),
        ("metrics", {"round": 10**30}),
        ("metrics", {"accuracy": "high"}),
        ("metrics", {"accuracy": [0.5]}),
        ("metrics", {"accuracy": 10**400}),
        ("metrics", {"accuracy": float("inf")}),
        ("metrics", {"seconds": -1}),
        ("metrics", {"memory": True}),
        ("metrics", {"facts": {"iterations": "many"}}),
        ("metrics", {"skipped": 3}),
        ("metrics", {"schema": "1"}),
        ("clients", {"round": {}}),
        ("clients", {"cohort": "all"}),
        ("clients", {"cohort": [10**12]}),
        ("clients", {"claims": {"one": 1}}),
        ("clients", {"claims": {"-1": 1}}),
        ("clients", {"weights": [0.5]}),
        ("clients", {"excluded": {"1": 5}}),
        ("clients", {"notes": {"score": 1}}),
        ("clients", {"verdicts": {"1": {**VERDICT, "action": "praised"}}}),
        ("clients", {"verdicts": {"1": {**VERDICT, "claimed": "1"}}}),
        ("clients", {"metrics": {"accuracy": {"1": "x"}}}),
    ],
)
def test_a_line_with_an_odd_field_is_told_in_a_sentence(tmp_path: Path, file: str, fields: dict[str, Any]) -> None:
    keep(tmp_path / "run", rounds=3)
    change(tmp_path / "run" / f"{file}.jsonl", 2, **fields)
    with pytest.raises(CounterpoiseError, match=rf"run/{file}.jsonl is damaged"):
        read_run(tmp_path / "run")


def test_the_two_files_of_a_run_must_agree_on_their_rounds(tmp_path: Path) -> None:
    from counterpoise.runs.folder import Folder

    keep(tmp_path / "run", rounds=3)
    change(tmp_path / "run" / "clients.jsonl", 2, round=3)
    with pytest.raises(CounterpoiseError, match=r"metrics.jsonl has round 2, but clients.jsonl has round 3"):
        list(Folder.open(tmp_path / "run").records())


@pytest.mark.parametrize("text", ["seed = -1", "seed = 'one'", "rounds = []", "rounds = 1e9", "rounds = 1000000000000"])
def test_settings_that_readers_count_on_are_checked(tmp_path: Path, text: str) -> None:
    keep(tmp_path, rounds=2)
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(CounterpoiseError, match=r"config.toml is damaged .* its field (seed|rounds)"):
        read_run(tmp_path)


INDEX = {"schema": 1, "run": "a", "round": 1, "status": "running", "state": "b", "rows": {"1": "c", "1-2": "d"}}


@pytest.mark.parametrize(
    "fields",
    [
        {"rows": {"../1": "c"}},
        {"rows": {"1": 3}},
        {"rows": []},
        {"rows": {"1-x": "c"}},
        {"round": -1},
        {"round": True},
        {"round": 1.0},
        {"round": 10**18},
        {"status": "splendid"},
        {"status": ["running"]},
        {"state": None},
        {"schema": "1"},
        {"schema": 2},
    ],
)
def test_an_odd_index_of_a_checkpoint_is_told_in_a_sentence(tmp_path: Path, fields: dict[str, Any]) -> None:
    (tmp_path / "checkpoint.json").write_text(json.dumps(INDEX))
    assert read_index(tmp_path) == INDEX
    (tmp_path / "checkpoint.json").write_text(json.dumps({**INDEX, **fields}))
    with pytest.raises(CounterpoiseError, match=r"checkpoint.json (is damaged|has schema 2)"):
        read_index(tmp_path)


@pytest.mark.parametrize("status", [3, ["finished"], "\x1b[2J", None])
def test_a_status_is_one_of_the_known_words(tmp_path: Path, status: Any) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "checkpoint.json").write_text(json.dumps({"status": status}))
    assert status_of(tmp_path) == "running"


@pytest.mark.parametrize(
    "fields",
    [
        {"sizes": "many"},
        {"sizes": [1, "2", 3]},
        {"sizes": [1, 2]},
        {"clients": "3"},
        {"labels": [[1], [2, 3], [4]]},
        {"labels": [[1, 2]]},
        {"labels": {"0": 1}},
        {"shown": [0, 1, -2]},
        {"client_names": ["north", "south"]},
        {"client_names": ["north", "south", 3]},
        {"class_names": ["cat"]},
    ],
)
def test_holdings_that_do_not_fit_are_not_used(tmp_path: Path, fields: dict[str, Any]) -> None:
    whole = {"clients": 3, "sizes": [5, 6, 7], "shown": [0, 1, 2], "labels": [[1, 4], [2, 4], [3, 4]]}
    whole |= {"client_names": ["north", "south", "east"], "class_names": ["cat", "dog"]}
    (tmp_path / "federation.json").write_text(json.dumps({"schema": 1, **whole}))
    assert holdings(tmp_path) == whole
    assert holdings(tmp_path)["client_names"] == ["north", "south", "east"]
    assert true_counts(tmp_path) == {0: 5, 1: 6, 2: 7}
    (tmp_path / "federation.json").write_text(json.dumps({**whole, **fields}))
    assert holdings(tmp_path) is None
    assert true_counts(tmp_path) is None
