"""A user's files are safe from folders that somebody else made, from a second process and from silent damage."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from kept import comparison, do, keep

import counterpoise as cp
from counterpoise.cli import main
from counterpoise.comparisons.arms import compared
from counterpoise.comparisons.collection import read_or_tell
from counterpoise.comparisons.conduct import conducting, held
from counterpoise.comparisons.contents import COMPARISON
from counterpoise.comparisons.plan import Plan, read_plan, write_plan
from counterpoise.runs.failure import keep_failure
from counterpoise.runs.files import Unsafe, append_bytes, check_plain, replace_file, replace_text
from counterpoise.runs.folder import Folder
from counterpoise.runs.locks import Busy, hold, in_use

PRECIOUS = "precious\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three rounds."""
    path = tmp_path_factory.mktemp("made") / "run"
    fed = cp.load("digits", partition=cp.iid(clients=3))
    cp.simulate("fedavg", fed, model="linear", rounds=3, out=path)
    return path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text(PRECIOUS)
    return tmp_path / "victim"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["counterpoise", *words])
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0), *capsys.readouterr()

    return call


def untouched(folder: Path) -> bool:
    return {path.name: path.read_text() for path in folder.iterdir()} == {"file": PRECIOUS}


def plan() -> Plan:
    return compared("quickstart", ["fedavg", "feddua:fedavg", "scaffold"], [], 3, 2, "counterpoise compare")


def damaged(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """A plan that somebody wrote by hand."""
    folder.mkdir(exist_ok=True)
    write_plan(folder, plan())
    values = tomllib.loads((folder / COMPARISON).read_text())
    change(values)
    (folder / COMPARISON).write_text(tomli_w.dumps(values))


# ---------------------------------------------------------------- plans


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda v: v.update(seeds=["x/../../../victim"]), "seeds"),
        (lambda v: v.update(seeds=[True]), "seeds"),
        (
            lambda v: v.update(seeds=[-1]),
            r"its field seeds\.0 is -1: input should be greater than or equal to 0\. Correct",
        ),
        (
            lambda v: v.update(seeds=[0, 0]),
            r"its field seeds is \[0, 0\]: a value occurs twice\. Correct it there, or s",
        ),
        (lambda v: v.update(seeds=[]), "seeds"),
        (lambda v: v.update(seeds="01"), "seeds"),
        (lambda v: v.update(kind="purge"), "kind"),
        (lambda v: v.update(command=["rm"]), "command"),
        (lambda v: v.update(arms=[]), "arms"),
        (lambda v: v.update(arms="fedavg"), "arms"),
        (
            lambda v: v.update(baseline="nobody"),
            r"its baseline 'nobody' is not the label of an arm \(fedavg, feddua:fedavg, s",
        ),
        (lambda v: v["arms"][0].update(slug=".."), "slug"),
        (lambda v: v["arms"][0].update(slug="."), "slug"),
        (lambda v: v["arms"][0].update(slug="a/../../victim"), "slug"),
        (lambda v: v["arms"][0].update(slug="/victim"), "slug"),
        (lambda v: v["arms"][0].update(slug="a\n"), "slug"),
        (lambda v: v["arms"][0].update(slug=7), "slug"),
        (lambda v: v["arms"][0].update(slug="scaffold"), "two arms have the slug 'scaffold'"),
        (lambda v: v["arms"][0].update(slug="compare.toml"), "the slug 'compare.toml' is the name of a file"),
        (lambda v: v["arms"][0].update(label="a\nb"), "label"),
        (lambda v: v["arms"][0].update(settings=3), "settings"),
        (lambda v: v["arms"][0].update(settings={"seed": 7}), "an arm cannot set the seed"),
        (lambda v: v["arms"][0].update(settings={"local.epoch": 7}), "There is no setting 'local.epoch'"),
        (lambda v: v.pop("config"), "its field config is missing"),
    ],
)
def test_a_plan_is_checked_whole_when_it_is_read(change: Any, field: str, tmp_path: Path) -> None:
    damaged(tmp_path, change)
    with pytest.raises(cp.CounterpoiseError, match=rf"(?=.*compare\.toml).*{field}"):
        read_plan(tmp_path)


def test_a_plan_that_was_written_is_read(tmp_path: Path) -> None:
    write_plan(tmp_path, plan())
    assert read_plan(tmp_path) == plan()


def test_a_comparison_of_somebody_elses_reaches_no_other_folder(cli, tmp_path: Path, victim: Path) -> None:
    damaged(tmp_path / "c", lambda values: values.update(seeds=["x/../../../victim"]))
    (tmp_path / "c" / "fedavg" / "seed-x").mkdir(parents=True)
    code, _, err = cli("resume", "c")
    assert (code, err.count("\n")) == (2, 1)
    assert "its field seeds" in err
    assert untouched(victim)
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [COMPARISON, "fedavg"]


@pytest.mark.parametrize("place", ["fedavg", "fedavg/seed-0", "fedavg/seed-0/checkpoint", "notes/deep/link", ".lock"])
def test_a_comparison_with_a_link_in_it_is_refused(cli, place: str, tmp_path: Path, victim: Path) -> None:
    (tmp_path / "c" / place).parent.mkdir(parents=True)
    write_plan(tmp_path / "c", plan())
    (tmp_path / "c" / place).symlink_to(victim)
    for words in (["resume", "c"], ["runs", "rm", "c", "--yes"]):
        code, _, err = cli(*words)
        assert (code, err.count("\n")) == (2, 1)
        assert f"c is left alone: c/{place} is a symbolic link" in err
    assert untouched(victim)


def test_the_folder_that_is_named_may_be_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(run)
    assert cp.resume(tmp_path / "elsewhere").status == "finished"


# ---------------------------------------------------------------- a worker


def test_a_worker_leaves_alone_what_it_did_not_make(tmp_path: Path, victim: Path) -> None:
    values = next(plan().pieces(plan().arms[0])).values
    sentence = do(victim, values)
    assert "is not empty" in sentence
    assert (victim / "file").read_text() == PRECIOUS
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "checkpoint").symlink_to(victim)
    before = sorted(victim.iterdir())
    assert "linked/checkpoint is a symbolic link" in do(tmp_path / "linked", values)
    assert [path.name for path in (tmp_path / "linked").iterdir()] == ["checkpoint"]
    assert sorted(victim.iterdir()) == before


def test_a_worker_parses_before_it_touches(tmp_path: Path) -> None:
    (tmp_path / "failure.txt").write_text("It failed before.\n")
    (tmp_path / "metrics.jsonl").write_text('{"schema":1}\n')
    assert "the setting data is missing" in do(tmp_path, {"rounds": 3})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"schema":1}\n'


def test_a_worker_writes_nothing_into_a_folder_in_use(run: Path) -> None:
    values = tomllib.loads((run / "config.toml").read_text())
    with Folder.open(run).locked():
        assert "the folder is in use" in do(run, values)
    assert not (run / "failure.txt").exists()


# ---------------------------------------------------------------- links, pipes and second names in a run's folder


@pytest.mark.parametrize(
    "name",
    [
        ".lock",
        "config.toml",
        "config.toml.partial",
        "metrics.jsonl",
        "clients.jsonl.partial",
        "checkpoint",
        "checkpoint/checkpoint.json",
        "checkpoint/other.safetensors",
    ],
)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_run_with_a_link_or_a_pipe_in_it_is_refused(name: str, kind: str, run: Path, tmp_path: Path) -> None:
    place, away = run / name, tmp_path / "away"
    if place.exists():
        place.rename(away)
    else:
        away.write_text(PRECIOUS)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    place.symlink_to(away) if kind == "link" else os.mkfifo(place)
    for path in (run, tmp_path / "also"):
        (tmp_path / "also").exists() or (tmp_path / "also").symlink_to(run)
        with pytest.raises(
            Unsafe, match=f"{re.escape(name)} is {'a symbolic link' if kind == 'link' else 'not an ordinary'}"
        ):
            cp.resume(path, rounds=4)
    (tmp_path / "also").unlink()
    place.unlink()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_names_of_unfinished_files_cannot_be_foreseen(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "x.partial").symlink_to(victim / "file")
    seen = []

    def write(partial: Path) -> None:
        assert partial.read_bytes() == b""
        seen.append(partial)
        partial.write_text("new")

    for _ in range(2):
        replace_file(tmp_path / "x", write)
    assert len({*seen}) == 2
    assert re.fullmatch(r"x\.[0-9a-f]{16}\.partial", seen[0].name)
    assert untouched(victim)
    assert (tmp_path / "x").read_text() == "new"
    assert not any(path.exists() for path in seen)


def test_a_link_is_replaced_and_not_followed(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "report.html").symlink_to(victim / "file")
    replace_text(tmp_path / "report.html", "new")
    assert untouched(victim)
    assert not (tmp_path / "report.html").is_symlink()
    (tmp_path / "log").symlink_to(victim / "file")
    with pytest.raises(Unsafe, match="is a symbolic link"):
        append_bytes(tmp_path / "log", b"more")
    assert untouched(victim)


def test_a_file_with_a_second_name_is_replaced_and_never_added_to(run: Path, tmp_path: Path) -> None:
    before = (run / "metrics.jsonl").read_bytes()
    os.link(run / "metrics.jsonl", tmp_path / "backup")
    with pytest.raises(Unsafe, match="has a second name"):
        append_bytes(run / "metrics.jsonl", b"{}\n")
    cp.resume(run, rounds=4)
    assert (tmp_path / "backup").read_bytes() == before
    assert (run / "metrics.jsonl").read_bytes().startswith(before)


def test_a_folder_of_a_run_that_was_killed_while_it_was_made_is_taken(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "new"
    path.mkdir()
    for name, text in {
        ".lock": "",
        "metrics.jsonl": '{"schema":1}\n',
        "config.toml.0123456789abcdef.partial": "x",
    }.items():
        (path / name).write_text(text)
    config = Folder.open(run).config
    Folder.create(path, config)
    assert sorted(p.name for p in path.iterdir()) == [".lock", "clients.jsonl", "config.toml", "metrics.jsonl"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "metrics.jsonl").write_text('{"schema":1}\n{"round":1}\n')
    with pytest.raises(cp.CounterpoiseError, match="is not empty"):
        Folder.create(tmp_path / "mine", config)
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["metrics.jsonl"]  # not even a lock


def test_a_checkpoint_removes_only_its_own_files(run: Path) -> None:
    (run / "checkpoint" / "mine.safetensors").write_text(PRECIOUS)
    (run / "checkpoint" / "state-1.safetensors").write_text("old")
    cp.resume(run, rounds=4)
    names = {path.name for path in (run / "checkpoint").iterdir()}
    assert names == {"checkpoint.json", "state-4.safetensors", "mine.safetensors"}


def test_no_run_that_cannot_be_resumed_is_said_to_be_resumable(cli, run: Path, victim: Path) -> None:
    """What is advised for a folder that holds a run, `resume` does."""
    config = Folder.open(run).config

    def advice() -> str:
        with pytest.raises(cp.CounterpoiseError) as told:
            Folder.create(Path("run"), config)
        return str(told.value)

    assert "run already holds a run. Continue it with 'counterpoise resume run', or choose another folder." in advice()
    assert cli("resume", "run")[0] == 0
    (run / "notes").symlink_to(victim)
    assert "It cannot be continued as it is: run is left alone: run/notes is a symbolic link" in advice()
    (run / "notes").unlink()
    index, text = run / "checkpoint/checkpoint.json", (run / "metrics.jsonl").read_text()
    kept = index.read_text()
    index.unlink()
    assert "It cannot be continued as it is: run has lost its checkpoint" in advice()
    index.write_text(kept)
    (run / "metrics.jsonl").write_text(text.replace('"round":1,"train_loss":', '"round":1,"train_loss":1'))
    assert "It cannot be continued as it is: run/metrics.jsonl" in advice()
    (run / "metrics.jsonl").write_text(text)
    (run / "config.toml").write_text((run / "config.toml").read_text().replace('name = "linear"', 'name = "own"'))
    assert "Continue it with cp.resume('run', model=...), or choose another folder." in advice()


# ---------------------------------------------------------------- two processes


def test_a_run_in_use_is_neither_removed_nor_begun_again(cli, run: Path) -> None:
    with Folder.open(run).locked():
        for words in (["runs", "rm", "run", "--yes"], ["run", "quickstart", "--rounds", "1", "--out", "run"]):
            code, _, err = cli(*words)
            assert (code, err.count("\n")) == (2, 1)
            assert "Another process is working on the run in run: the folder is in use" in err
    assert (run / "config.toml").exists()
    assert cli("runs", "rm", "run", "--yes")[1] == "removed: 1 run\n"
    assert not run.exists()


def test_no_run_is_kept_in_a_folder_in_use(run: Path) -> None:
    folder = Folder.open(run)
    with folder.locked(), pytest.raises(Busy, match="the folder is in use"):
        Folder.create(run, folder.config)


def test_a_comparison_in_use_is_not_removed(cli, tmp_path: Path) -> None:
    comparison(tmp_path / "c")
    write_plan(tmp_path / "c", plan())
    (tmp_path / "c" / "workers.log").touch()
    before = sorted(tmp_path.rglob("*"))
    for place in (tmp_path / "c", tmp_path / "c" / "scaffold" / "seed-2"):
        with hold(place, ""):
            code, _, err = cli("runs", "rm", "c", "--yes")
            assert (code, "in use" in err) == (2, True)
    assert {*before} <= {*tmp_path.rglob("*")}
    assert cli("runs", "rm", "c", "--yes")[1] == "removed: 9 runs\n"
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("words", [["resume", "c"], ["compare", "quickstart", "--methods", "fedavg", "--out", "c"]])
def test_a_comparison_in_use_is_refused_at_once(cli, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "c").mkdir()
    write_plan(tmp_path / "c", plan())
    begun = time.monotonic()
    with held(tmp_path / "c"), conducting(tmp_path / "c"):
        code, _, err = cli(*words)
    assert (code, "Another process is at work in c: the folder is in use" in err) == (2, True)
    assert time.monotonic() - begun < 10


def test_the_workers_of_a_killed_comparison_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plan(tmp_path, plan())
    with contextlib.ExitStack() as workers:
        workers.enter_context(held(tmp_path))
        monkeypatch.setattr("counterpoise.runs.locks.time.sleep", lambda seconds: workers.close())
        with held(tmp_path) as lock:
            assert lock is not None


def test_a_comparison_holds_its_plan_while_it_works(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison(tmp_path / "c")
    write_plan(tmp_path / "c", plan())
    seen = []
    monkeypatch.setattr(
        "counterpoise.comparisons.perform.conduct", lambda folder, *_: seen.append(in_use(folder, COMPARISON))
    )
    monkeypatch.setattr("counterpoise.reports.write", lambda folder, **_: folder / "report.html")
    cli("resume", "c")
    assert seen == [True]
    assert not in_use(tmp_path / "c", COMPARISON)


def test_a_lock_whose_file_was_removed_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, removals = fcntl.flock, iter([True])

    def removed(file: int, how: int) -> None:
        """Another process removes the folder's files between our opening the lock and our taking it."""
        if next(removals, False):
            (tmp_path / ".lock").unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", removed)
    with hold(tmp_path, ""):
        assert in_use(tmp_path)
        with pytest.raises(Busy, match="busy"), hold(tmp_path, "busy"):
            pass
    assert not in_use(tmp_path)


# ---------------------------------------------------------------- removing


def test_only_what_counterpoise_wrote_is_removed(cli, tmp_path: Path) -> None:
    keep(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text(PRECIOUS)
    (tmp_path / "run" / "checkpoint" / "mine.safetensors").write_text(PRECIOUS)
    code, out, _ = cli("runs", "rm", "run", "--yes")
    assert (code, out.splitlines()[0]) == (0, "removed: 1 run")
    assert "left, because they do not belong to what was removed: run/checkpoint/mine.safetensors, run/notes.txt" in out
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["checkpoint", "notes.txt"]


def test_a_link_to_a_run_is_not_removed_through(cli, run: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(run)
    before = sorted(run.rglob("*"))
    code, _, err = cli("runs", "rm", "alias", "--yes")
    assert code == 2
    assert "Name the folder itself to remove it." in err
    assert sorted(run.rglob("*")) == before


def test_a_comparison_is_removed_without_what_was_there_before(cli, tmp_path: Path) -> None:
    damaged(tmp_path / "compared", lambda values: None)
    mine = tmp_path / "compared" / "fedavg" / "seed-0"
    mine.mkdir(parents=True)
    for name in ("config.toml", "metrics.jsonl", "report.html", "failure.txt"):
        (mine / name).write_text(PRECIOUS)
    failed = tmp_path / "compared" / "scaffold" / "seed-0"
    failed.mkdir(parents=True)
    (failed / "failure.txt").write_text("It failed.\n")
    code, _, _ = cli("runs", "rm", "compared", "--yes")
    assert code == 0
    assert {path.name: path.read_text() for path in mine.iterdir()} == dict.fromkeys(
        ("config.toml", "metrics.jsonl", "report.html", "failure.txt"), PRECIOUS
    )
    assert not failed.exists()


@pytest.mark.parametrize("blocked", ["fedavg", "fedavg/seed-0", "fedavg/seed-0/failure.txt"])
def test_a_worker_tells_of_a_place_that_it_cannot_write_to(blocked: str, tmp_path: Path) -> None:
    place, values = tmp_path / "fedavg" / "seed-0", next(plan().pieces(plan().arms[0])).values
    if blocked.endswith(".txt"):
        (tmp_path / blocked).mkdir(parents=True)
    else:
        (tmp_path / blocked).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / blocked).write_text(PRECIOUS)
    assert do(place, values)
    keep_failure(place, "Its process ended.\n")
    assert blocked.endswith(".txt") or (tmp_path / blocked).read_text() == PRECIOUS


def test_a_worker_never_writes_its_failure_over_another_file(victim: Path) -> None:
    (victim / "failure.txt").write_text(PRECIOUS)
    assert do(victim, {"rounds": 3})
    assert {path.read_text() for path in victim.iterdir()} == {PRECIOUS}


def test_a_folder_with_a_configuration_of_something_else_is_left_alone(cli, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    ours = 'method = "fedavg"\ndata = "digits"\n'
    for text, record in (('title = "mine"\n', '{"schema":1}\n'), (ours, '{"mine":1}\n'), (ours, "[1]\n")):
        (tmp_path / "site" / "config.toml").write_text(text)
        (tmp_path / "site" / "metrics.jsonl").write_text(record)
        assert "is not the folder of a run" in cli("runs", "rm", "site", "--yes")[2]
        assert len([*(tmp_path / "site").iterdir()]) == 2
    (tmp_path / "site" / "metrics.jsonl").unlink()
    assert "is not the folder of a run" in cli("runs", "rm", "site", "--yes")[2]


# ---------------------------------------------------------------- silent damage


@pytest.mark.parametrize("name", ["metrics.jsonl", "clients.jsonl"])
def test_a_changed_digit_is_noticed(name: str, run: Path) -> None:
    lines = (run / name).read_text().splitlines(keepends=True)
    place = re.search(r"\.\d*([1-8])", lines[2]).start(1)  # type: ignore[union-attr]
    lines[2] = lines[2][:place] + str(int(lines[2][place]) + 1) + lines[2][place + 1 :]
    (run / name).write_text("".join(lines))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(
        cp.CounterpoiseError, match=rf"{name} is not what was written: .* rounds 1 to 3 .*in another folder"
    ):
        cp.resume(run, rounds=4)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_rounds_after_the_last_checkpoint_of_a_killed_run_are_unchecked(cli, run: Path) -> None:
    index = json.loads((run / "checkpoint/checkpoint.json").read_text())
    (run / "checkpoint/checkpoint.json").write_text(json.dumps(index | {"status": "running"}))
    (told,) = json.loads(cli("runs", "list", ".", "--json")[1])
    assert (told["status"], told["rounds"], told["doubts"]) == ("interrupted", 3, [])
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(last | {"round": 4, "train_loss": 0.0}) + "\n")
    (told,) = json.loads(cli("runs", "list", ".", "--json")[1])
    assert "after 3 were written after its last checkpoint: they cannot be checked" in told["doubts"][0]
    with hold(run, "it is being written"):
        (told,) = json.loads(cli("runs", "list", ".", "--json")[1])
    assert told["status"] == "running"
    assert not any("checked" in doubt for doubt in told["doubts"])


@pytest.mark.parametrize(("number", "status"), [(3, "finished"), (4, "finished"), (3, "running")])
def test_rounds_that_were_added_are_told_and_left_out(cli, run: Path, number: int, status: str) -> None:
    index = json.loads((run / "checkpoint/checkpoint.json").read_text())
    (run / "checkpoint/checkpoint.json").write_text(json.dumps(index | {"status": status}))
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(last | {"round": number, "train_loss": 0.0}) + "\n")
    (told,) = json.loads(cli("runs", "list", ".", "--json")[1])
    assert told["doubts"] == ["run/metrics.jsonl holds 4 rounds, and the run has 3: the others are left out."]
    assert re.search("3/3 .*doubtful", cli("runs", "list", ".")[1])


def test_a_configuration_that_asks_for_fewer_rounds_than_there_are_is_told(cli, run: Path) -> None:
    (run / "config.toml").write_text((run / "config.toml").read_text().replace("rounds = 3", "rounds = 2", 1))
    (told,) = json.loads(cli("runs", "list", ".", "--json")[1])
    assert told["doubts"] == ["run/config.toml asks for fewer rounds than the run's 3: it is not what was written."]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "there")
    with pytest.raises(cp.CounterpoiseError, match="there is not a file, so it is not replaced by one"):
        replace_text(tmp_path / "there", "text")
    assert not (tmp_path / "there").is_file()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_changed_digit_is_told_wherever_the_run_is_shown(cli, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert cli("runs", "list", ".")[0] == 0
    assert caplog.text == ""
    assert "doubtful" not in cli("runs", "list", ".")[1]
    assert json.loads(cli("runs", "list", ".", "--json")[1])[0]["doubts"] == []
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text.replace('"bytes_up":', '"bytes_up":1', 1))
    assert "3/3 doubtful" in cli("runs", "list", ".")[1]
    (doubt,) = json.loads(cli("runs", "list", ".", "--json")[1])[0]["doubts"]
    assert doubt == "run/metrics.jsonl is not what was written: this run's numbers may be wrong."
    assert cli("runs", "show", "run")[0] == 0
    assert "run/metrics.jsonl is not what was written" in caplog.text


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("checkpoint/checkpoint.json", None, "is missing: how this run ended is not known, and it cannot be resumed"),
        ("checkpoint/checkpoint.json", lambda text: text[:20], "is not valid JSON"),
        (
            "checkpoint/checkpoint.json",
            lambda text: text.replace('"round": 3', '"round": -3'),
            "its field round is -3: input should be greater than or equal to 0. Replace it with an intact",
        ),
        ("config.toml", lambda text: text.replace("linear", "mlp"), "is not what was written"),
        ("federation.json", lambda text: text.replace('"sizes":[', '"sizes":[1'), "is not what was written"),
        ("federation.json", None, "is missing: this run's numbers may be wrong"),
        ("metrics.jsonl", None, "is missing: this run's numbers may be wrong"),
    ],
)
def test_damage_is_told_in_a_sentence(name, change, told, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = (run / name).read_text()
    (run / name).unlink() if change is None else (run / name).write_text(change(text))
    assert change is None or (run / name).read_text() != text
    read_or_tell(run)
    (sentence,) = caplog.messages
    assert sentence.startswith(f"{run / name} ")
    assert told in sentence


def test_a_run_that_goes_on_still_vouches_for_who_holds_what(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    cp.resume(run, rounds=4)
    read_or_tell(run)
    assert caplog.messages == []
    (run / "federation.json").write_text("{}")
    read_or_tell(run)
    assert len(caplog.messages) == 1


def test_a_finished_run_that_is_resumed_keeps_its_date(run: Path) -> None:
    os.utime(run / "metrics.jsonl", (10**9, 10**9))
    cp.resume(run)
    assert read_or_tell(run).changed.timestamp() == 10**9


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl"])
def test_a_damaged_run_with_its_checkpoint_can_be_removed(name: str, cli, run: Path) -> None:
    (run / name).write_text("[[[")
    (run / "mine.txt").write_text(PRECIOUS)
    assert cli("runs", "rm", "run", "--yes")[1].startswith("removed: 1 run\nleft,")
    assert {path.name for path in run.rglob("*")} == {"mine.txt"}


def test_runs_that_stay_are_not_counted_as_removed(cli, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    write_plan(tmp_path / "c", plan())
    comparison(tmp_path / "c", rounds=2)
    keep(tmp_path / "c" / "mine", rounds=2)
    assert cli("runs", "rm", "c", "--yes")[1].startswith("removed: 9 runs\nleft,")
    assert (tmp_path / "c" / "mine" / "metrics.jsonl").exists()


def test_a_digest_covers_every_round_up_to_the_checkpoint_and_no_later_one(run: Path) -> None:
    cp.resume(run, rounds=5, on_round=lambda record: record.round == 4)
    for name in ("metrics.jsonl", "clients.jsonl"):
        with open(run / name, "a") as file:
            file.write('{"round":5,"torn')
    assert len(cp.resume(run, rounds=5).rounds) == 5
    assert len(cp.resume(run, rounds=6).rounds) == 6


@pytest.mark.parametrize("lost", ["checkpoint/checkpoint.json", "checkpoint"])
def test_a_lost_checkpoint_is_noticed_and_the_history_stays(lost: str, run: Path) -> None:
    shutil.rmtree(run / lost) if (run / lost).is_dir() else (run / lost).unlink()
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(
        cp.CounterpoiseError, match=r"lost its checkpoint: its record ends with round 3.*in another folder"
    ):
        cp.resume(run)
    assert (run / "metrics.jsonl").read_bytes() == before


def as_earlier(run: Path) -> None:
    """The same run as a version kept it that wrote no digests, and the first checkpoint after five seconds."""
    for name in ("metrics.jsonl", "clients.jsonl"):
        lines = (run / name).read_text().splitlines(keepends=True)
        (run / name).write_text("".join(['{"schema":1}\n', *lines[1:]]))
    index = run / "checkpoint" / "checkpoint.json"
    values = json.loads(index.read_text())
    del values["records"]
    index.write_text(json.dumps(values))


def test_a_run_of_an_earlier_version_goes_on(run: Path, made: Path, tmp_path: Path) -> None:
    as_earlier(run)
    whole = Path(shutil.copytree(made, tmp_path / "whole"))
    one, other = cp.resume(run, rounds=4).model, cp.resume(whole, rounds=4).model
    assert all(map(torch.equal, one.parameters(), other.parameters()))
    assert "metrics.jsonl" in json.loads((run / "checkpoint" / "checkpoint.json").read_text())["records"]


def test_a_run_of_an_earlier_version_that_lost_its_checkpoint_keeps_its_history(run: Path) -> None:
    as_earlier(run)
    shutil.rmtree(run / "checkpoint")
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(cp.CounterpoiseError, match="lost its checkpoint"):
        cp.resume(run)
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_folder_that_cannot_hold_links_is_looked_through_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    check_plain(tmp_path)
    (tmp_path / "a" / "b" / "odd\x1bname").symlink_to(tmp_path)
    with pytest.raises(Unsafe, match=r"odd\\x1bname is a symbolic link"):
        check_plain(tmp_path)
