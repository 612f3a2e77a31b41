"""A kept run damaged at random: whatever reads it gives its numbers or one sentence."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from pathlib import Path

import pytest

import counterpoise as cp
from counterpoise.comparisons.collection import collect, read_or_tell, read_run
from counterpoise.comparisons.standing import stand
from counterpoise.comparisons.tables import as_plain, columns
from counterpoise.errors import CounterpoiseError
from counterpoise.reports import write

ODD = [
    "null",
    "true",
    "-1",
    "1e999",
    "NaN",
    "9" * 5000,
    '"x"',
    "[]",
    "{}",
    "[" * 3000,
    '"\\ud800"',
    "10000000000000000",
]
FILES = [
    "config.toml",
    "metrics.jsonl",
    "clients.jsonl",
    "federation.json",
    "checkpoint/checkpoint.json",
    "failure.txt",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a method with verdicts, clients' state and notes."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    fed = cp.load("digits", partition=cp.iid(clients=3), samples=60)
    cp.simulate("feddua:scaffold", fed, model=cp.models.linear, rounds=2, out=folder)
    (folder / "failure.txt").write_text("It failed.\n")
    return folder


def damage(path: Path, draw: random.Random) -> None:
    """Change a file: a byte, a value, a cut, a line twice, a file in place of a folder or a folder in place of a file."""
    raw = path.read_bytes()
    place = draw.randrange(len(raw))
    how = draw.choice(["byte", "value", "value", "value", "cut", "twice", "folder", "gone"])
    if how == "byte":
        path.write_bytes(raw[:place] + bytes([draw.randrange(256)]) + raw[place + 1 :])
    elif how == "value":  # what follows a colon or an equals sign
        marks = [i for i, c in enumerate(raw) if c in b":="]
        start = draw.choice(marks) + 1 if marks else 0
        end = min((i for i in (raw.find(c, start) for c in (b",", b"}", b"\n")) if i > 0), default=len(raw))
        path.write_bytes(raw[:start] + draw.choice(ODD).encode() + raw[end:])
    elif how == "cut":
        path.write_bytes(raw[:place])
    elif how == "twice":
        path.write_bytes(raw + raw[place:])
    else:
        path.unlink()
        if how == "folder":
            path.mkdir()


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_run_gives_its_numbers_or_a_sentence(run: Path, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    there = tmp_path / "run"
    shutil.copytree(run, there)
    for _ in range(draw.choice([1, 1, 2])):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            damage(there / draw.choice(FILES), draw)
    told = read_or_tell(there)
    json.dumps([told.method, told.data, told.seed, told.rounds, told.sentence, told.status])
    with contextlib.suppress(CounterpoiseError):
        read_run(there).measures()
        found = stand(collect([there]))
        columns(found)
        json.dumps(as_plain(found))
    if seed % 10 == 0:
        with contextlib.suppress(CounterpoiseError):
            write(there)
    if seed % 4 == 1:
        with contextlib.suppress(CounterpoiseError):
            cp.resume(there, rounds=3)


@pytest.mark.parametrize("text", [None, '{"x":'], ids=["lost", "broken"])
def test_a_resumed_run_writes_a_changed_federation_json_again(tmp_path, caplog, text):
    federation = cp.load("synthetic", partition=cp.iid(clients=3), samples=60)
    cp.simulate("fedavg", federation, model=cp.models.linear, rounds=1, out=tmp_path / "run")
    path = tmp_path / "run" / "federation.json"
    written = path.read_text()
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    cp.resume(tmp_path / "run", rounds=2)
    assert path.read_text() == written
    assert "federation.json was lost or is not what was written; it has been written again." in caplog.text
