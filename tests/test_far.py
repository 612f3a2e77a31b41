"""What `benchmarks/far` does to bring data to a machine that is far away."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from counterpoise.errors import CounterpoiseError
from counterpoise.studies.plans import plan_of
from counterpoise.studies.reading import chosen, read_study
from counterpoise.studies.results import KeptArm, KeptCell, Made, Outcome, read_results, write_results

FAR = Path(__file__).parents[1] / "benchmarks" / "far"


def parts(*words: str | Path) -> tuple[int, str]:
    ran = subprocess.run([sys.executable, FAR / "parts.py", *words], capture_output=True, text=True)
    return ran.returncode, ran.stderr


def test_pictures_arrive_as_they_were_and_what_is_missing_is_said(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0)
    whole = {
        "x_train": drawn.integers(0, 256, (20, 5, 4, 3), np.uint8),
        "x_test": drawn.integers(0, 256, (7, 5, 4, 3), np.uint8),
        "y_train": np.arange(20),
    }
    np.savez(tmp_path / "whole.npz", **whole)
    assert parts("split", tmp_path / "whole.npz", tmp_path / "parts") == (0, "")
    assert parts("join", tmp_path / "parts", tmp_path / "back.npz") == (0, "")
    back = np.load(tmp_path / "back.npz")
    assert sorted(back.files) == sorted(whole)
    assert all(np.array_equal(back[key], whole[key]) for key in whole)
    next((tmp_path / "parts").glob("*.xz")).unlink()
    assert "a part is missing" in parts("join", tmp_path / "parts", tmp_path / "back.npz")[1]
    for part in (tmp_path / "parts").glob("*.xz"):
        part.unlink()
    assert "holds 0 of 27 pictures: a part is missing" in parts("join", tmp_path / "parts", tmp_path / "back.npz")[1]
    (tmp_path / "parts" / "rest.npz").write_bytes(b"half")
    assert "Traceback" not in parts("join", tmp_path / "parts", tmp_path / "back.npz")[1]


def test_a_line_that_is_not_a_whole_job_waits_and_is_named_once(tmp_path: Path, capsys) -> None:
    listed = runpy.run_path(str(FAR / "side_by_side.py"))["listed"]
    told: set[str] = set()
    assert listed(tmp_path / "none", told) == []
    path = tmp_path / "jobs.jsonl"
    path.write_text(
        '{"id": "a", "file": "f", "cells": "c", "seeds": 5}\n\n{"id": "b"}\n{"id": "c", "fi\n'
        '{"id": "d", "file": "f", "cells": "c", "gib": "much"}\n{"id": "e", "file": "f", "cells": "c", "gib": NaN}\n'
        '{"id": "f/g", "file": "f", "cells": "c"}\n{"id": "h", "file": "f", "cells": "c", "needs": null}\n'
        '{"id": "i", "file": "f", "cells": "c", "needs": "mnist"}'
    )
    for _ in range(2):
        ((job),) = listed(path, told)
        assert (job["id"], job["gib"], job["needs"]) == ("a", 12.0, [])
    lines = capsys.readouterr().err.splitlines()
    assert [line.count("this line is no job yet") for line in lines] == [1] * 7


def test_a_job_says_how_many_workers_it_has() -> None:
    command = runpy.run_path(str(FAR / "side_by_side.py"))["command"]
    job = {"id": "a", "file": "f", "cells": "c"}
    assert command(job, Path("out"))[-2:] == ["--jobs", "1"]
    assert command({**job, "jobs": 4, "together": 2}, Path("out"))[-4:] == ["--together", "2", "--jobs", "4"]


STUDY = """
title = "Two short runs"
seeds = 1
metric = "last"
[[cell]]
name = "a"
like = "quickstart"
methods = ["fedavg", "fedprox"]
set = { rounds = 1 }
"""


def test_jobs_run_and_are_tried_again_and_what_they_found_comes_back(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    job = {"id": "fine", "file": str(tmp_path / "study.toml"), "cells": "a", "methods": "fedavg", "gib": 0}
    jobs = [job, {**job, "id": "lost", "file": str(tmp_path / "none.toml")}]
    (tmp_path / "jobs.jsonl").write_text("\n".join(map(json.dumps, jobs)))
    words = [FAR / "side_by_side.py", tmp_path / "jobs.jsonl", tmp_path / "out", "--back", tmp_path / "back"]
    subprocess.run([sys.executable, *words], check=True, timeout=300)
    done = [line.split()[:2] for line in (tmp_path / "out/done.txt").read_text().splitlines()]
    assert sorted(done) == [["fine", "0"], *[["lost", "2"]] * 4]
    with tarfile.open(tmp_path / "back/results.tar.xz") as archive:
        assert {"results/fine.json", "logs/lost.txt", "done.txt"} <= {*archive.getnames()}
        found = json.load(archive.extractfile("results/fine.json"))
    assert [piece["status"] for piece in found["cells"]["a"]["arms"]["fedavg"]["pieces"]] == ["finished"]
    assert not [*(tmp_path / "out/runs").iterdir()]
    assert [*(tmp_path / "back").iterdir()] == [tmp_path / "back/results.tar.xz"]


def test_nobody_works_beside_a_program_or_the_jobs_that_it_left(tmp_path: Path) -> None:
    code = f"""
import fcntl, pathlib, runpy, sys
far = runpy.run_path({str(FAR / "side_by_side.py")!r})
far["begin"].__globals__["command"] = lambda job, out: ["sleep", "600"]
out = pathlib.Path(sys.argv[1])
(out / "logs").mkdir(parents=True)
with (out / "lock").open("a") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    print(far["begin"]({{"id": "a"}}, out, lock.fileno()).process.pid)
"""
    (tmp_path / "jobs.jsonl").touch()
    words = [sys.executable, "-c", code, tmp_path / "out"]
    left = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    words = [sys.executable, FAR / "side_by_side.py", tmp_path / "jobs.jsonl", tmp_path / "out"]
    try:
        ran = subprocess.run(words, capture_output=True, text=True)
        assert (ran.returncode, ran.stderr) == (1, f"Jobs run in {tmp_path / 'out'} already.\n")
    finally:
        os.kill(left, signal.SIGKILL)
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ran.stdout == "no job is left\n"


def with_outcomes(*seeds: int, status: str = "finished") -> KeptArm:
    made = Made("", "", "")
    return KeptArm({"method": {"name": "fedavg"}}, {seed: Outcome(seed, status, [(1, 0.5)], made) for seed in seeds})


def test_what_is_left_of_a_study_becomes_jobs_and_what_they_found_comes_in(tmp_path: Path) -> None:
    jobs = runpy.run_path(str(FAR / "jobs.py"))
    path, far = tmp_path / "study.toml", tmp_path / "far"
    path.write_text(STUDY.replace("seeds = 1", "seeds = 2"))
    study = read_study(path)
    plan = plan_of(study.cells[0])
    first, second = plan.seeds

    def results(**arms: KeptArm) -> dict[str, KeptCell]:
        return {"a": KeptCell(plan.values, "accuracy", arms)}

    def write(more: dict[str, float] | None = None, **options: bool) -> None:
        jobs["write_left"](far, [*jobs["left"](path, [], [], **options)], more or {})

    prox = replace(with_outcomes(first, second), settings=plan.arms[1].settings)
    write_results(path.with_suffix(".json"), study, results(fedavg=with_outcomes(first), fedprox=prox))
    write({"gib": 3.0})
    job = {
        "id": "study-a-fedavg",
        "file": str(path),
        "cells": "a",
        "methods": "fedavg",
        "needs": [],
        "gib": 3.0,
    }
    assert [json.loads(line) for line in (far / "jobs.jsonl").read_text().splitlines()] == [job]
    known = read_results(far / "known/study-a-fedavg.json")[1]["a"].arms
    assert {label: [*arm.outcomes] for label, arm in known.items()} == {"fedavg": [first]}

    again = with_outcomes(first, second)
    again.outcomes[first] = replace(again.outcomes[first], curve=[(1, 0.9)])
    (tmp_path / "back").mkdir()
    write_results(tmp_path / "back/study-a-fedavg.json", study, results(fedavg=again))
    jobs["merge"](far, tmp_path / "back")
    found = read_results(path.with_suffix(".json"))[1]["a"].arms
    assert {label: [*arm.outcomes] for label, arm in found.items()} == {
        "fedavg": [first, second],
        "fedprox": [first, second],
    }
    assert found["fedavg"].outcomes[first].curve == [(1, 0.5)]  # what was there stays
    other = {"a": replace(results(fedavg=again)["a"], config={**plan.values, "rounds": 7})}
    write_results(tmp_path / "back/study-a-fedavg.json", study, other)
    with pytest.raises(
        CounterpoiseError,
        match=r"study-a-fedavg\.json has results of the cell 'a', fedavg, with other settings: rounds",
    ):
        jobs["merge"](far, tmp_path / "back")
    (far / "jobs.jsonl").unlink()
    write()
    assert not (far / "jobs.jsonl").read_text()
    (again,) = (one for one in jobs["left"](path, [], ["fedprox"], again=True))
    assert (again[0]["again"], again[2]) == (True, {})
    write(again=True)
    once_more = with_outcomes(first)
    once_more.outcomes[first] = replace(once_more.outcomes[first], curve=[(1, 0.7)])
    write_results(tmp_path / "back/study-a-fedavg.json", study, results(fedavg=once_more))
    jobs["merge"](far, tmp_path / "back")
    found = read_results(path.with_suffix(".json"))[1]["a"].arms["fedavg"].outcomes
    assert {seed: one.curve for seed, one in found.items()} == {first: [(1, 0.7)], second: [(1, 0.5)]}
    (far / "jobs.jsonl").unlink()

    path.write_text(
        STUDY.replace("seeds = 1", "seeds = 3").replace('"fedprox"', '{ method = "fedprox", label = "b, c" }')
    )
    path.with_suffix(".json").unlink()
    ((job, study, _),) = jobs["left"](path, [], [], whole=True)
    assert (job["id"], job["methods"]) == ("study-a-fedavg-and-1-more", "fedavg,b, c")
    assert [one.label for one in chosen(study, [job["cells"]], None, [job["methods"]]).cells[0].entries] == [
        "fedavg",
        "b, c",
    ]
    write_results(path.with_suffix(".json"), study, results(fedavg=with_outcomes(first, second)))
    ((job, _, known),) = jobs["left"](path, [], [], whole=True)
    assert (job["methods"], {label: [*arm.outcomes] for label, arm in known["a"].arms.items()}) == (
        "fedavg,b, c",
        {"fedavg": [first, second]},
    )
    write(whole=True)
    path.write_text(path.read_text() + '[[cell]]\nname = "0"\nlike = "quickstart"\nmethods = ["fedavg"]\n')
    with pytest.raises(CounterpoiseError, match="would have the job study-a-fedavg-and-1-more twice"):
        write(whole=True)
    assert len((far / "jobs.jsonl").read_text().splitlines()) == 1  # not even the new cell's
    path.with_suffix(".json").unlink()

    path.write_text(STUDY.replace('like = "quickstart"', 'like = "worlds/fmnist-iid"'))
    assert [job["needs"] for job, *_ in jobs["left"](path, [], [])] == [["fashion-mnist"]] * 2
    failed = results(fedavg=with_outcomes(first, status="failed"))
    assert jobs["fold"](failed, results(fedavg=with_outcomes(first))) == ["a"]
    assert failed["a"].arms["fedavg"].outcomes[first].status == "finished"


def test_what_is_wrong_with_jobs_is_said_in_a_sentence(tmp_path: Path, monkeypatch, capsys) -> None:
    main = runpy.run_path(str(FAR / "jobs.py"))["main"]

    def told(*words: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", ["jobs.py", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr().err or str(end.value.code)
        return said.splitlines()[-1]

    assert told("merge", tmp_path, tmp_path) == f"There is no file {tmp_path / 'jobs.jsonl'}."
    (tmp_path / "jobs.jsonl").write_text('{"id": "a"}')
    assert told("merge", tmp_path, tmp_path).endswith("line 1 is no job: it needs an id and a file.")
    (tmp_path / "jobs.jsonl").write_text('\n{"id"')
    assert told("merge", tmp_path, tmp_path).startswith(f"{tmp_path / 'jobs.jsonl'}, line 2 is not valid JSON")
    (tmp_path / "study.toml").write_text(STUDY)
    for size in ("nan", "-1", "inf", "x"):
        assert "invalid gibibytes value" in told("left", tmp_path / "study.toml", tmp_path, "--gib", size)
    assert "invalid positive value: '0'" in told("left", tmp_path / "study.toml", tmp_path, "--jobs", "0")
    assert "There is no method 'fedavgg'" in told("left", tmp_path / "study.toml", tmp_path, "--methods", "fedavgg")
    (tmp_path / "study.toml").write_text("")
    assert "study.toml" in told("left", tmp_path / "study.toml", tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="needs setsid, and the far machine has Linux")
def test_what_is_carried_is_unpacked_there_and_what_is_known_comes_back(tmp_path: Path) -> None:
    carried, home, out = tmp_path / "far/1", tmp_path / "home", tmp_path / "out"
    for folder in (carried, out, tmp_path / "far/known", tmp_path / "packages", home / "out/results"):
        folder.mkdir(parents=True)
    (tmp_path / "packages/here.py").touch()
    with tarfile.open(carried / "packages.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "packages", ".")
    (carried / "a.npz").write_text("data")
    (tmp_path / "far/known/one.json").write_text("known")
    (tmp_path / "far/known/two.json").write_text("known")
    (home / "out/results/two.json").write_text("found")
    (tmp_path / "far/jobs.jsonl").touch()
    (tool := tmp_path / "tools/nvidia-cuda-mps-control").parent.mkdir()
    tool.write_text("#!/bin/sh\n")  # not the machine's own
    tool.chmod(0o755)
    path = f"{tool.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    places = {"FAR_HOME": str(home), "OUT": str(out), "PATH": path, "TMPDIR": str(tmp_path)}

    def there(folder: Path, seconds: int | str = 600, **more: str) -> subprocess.CompletedProcess[str]:
        words = ["bash", FAR / "there.sh", folder, str(seconds)]
        return subprocess.run(words, cwd=FAR.parents[1], env=os.environ | places | more, capture_output=True, text=True)

    assert "must name the commit" in there(carried).stderr
    assert there(carried, "soon").stderr == "Say which folder was carried, and how many seconds to wait.\n"
    assert there(tmp_path / "far/9", COUNTERPOISE_COMMIT="0" * 7).stderr == (
        f"There is no folder {tmp_path / 'far/9'}. Was it carried?\n"
    )
    ended = there(carried, COUNTERPOISE_COMMIT="0" * 7)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "no job is left\n", "")
    assert (home / "packages/here.py").exists()
    assert (home / "data/a.npz").read_text() == "data"
    with tarfile.open(out / "results.tar.xz") as back:
        found = {name: back.extractfile(f"results/{name}.json").read() for name in ("one", "two")}
    assert found == {"one": b"known", "two": b"found"}

    # The second call begins a job and does not wait, other commits are refused meanwhile, and the fourth call waits.
    (tmp_path / "study.toml").write_text(STUDY)
    job = {"id": "job", "file": str(tmp_path / "study.toml"), "cells": "a", "methods": "fedavg", "gib": 0}
    (tmp_path / "far/jobs.jsonl").write_text(json.dumps(job))
    (tmp_path / "far/2/parts").mkdir(parents=True)
    for number in range(12):
        (tmp_path / f"far/2/parts/{number:02d}.xz").write_text("torn")
    (home / "data/a.npz").write_text("in use")
    begun = there(carried, 0, COUNTERPOISE_COMMIT="0" * 7)
    assert (begun.returncode, begun.stdout[:14]) == (0, "still running:")
    assert (home / "data/a.npz").read_text() == "in use"
    other = there(carried, COUNTERPOISE_COMMIT="1" * 7)
    assert (other.returncode, other.stderr) == (
        2,
        "Jobs of the commit 0000000 still run. Wait for them, or give the machine back.\n",
    )
    ended = there(tmp_path / "far/2", COUNTERPOISE_COMMIT="0" * 7)
    assert "CIFAR-10 could not be joined. Carry its parts again." in ended.stderr
    assert (ended.returncode, ended.stdout[:6], ended.stdout.splitlines()[-1]) == (0, "job 0 ", "no job is left")
    with tarfile.open(out / "results.tar.xz") as back:
        found = json.load(back.extractfile("results/job.json"))
    assert found["made"][0]["commit"] == "0000000"
    (home / "runner.txt").write_text("killed")
    after = there(carried, COUNTERPOISE_COMMIT="1" * 7)
    assert after.returncode == 0
    assert after.stderr.endswith("The jobs of an earlier call were stopped. The last that was said: killed\n")
    assert len((home / "out/done.txt").read_text().splitlines()) == 1  # what is done is not begun again
    assert (home / "commit").read_text() == "1111111\n"


class Ended:
    """A process that ends, well or not, when it is asked for the third time."""

    def __init__(self, returncode: int = 0) -> None:
        self.asked, self.returncode = 0, returncode

    def poll(self) -> int | None:
        self.asked += 1
        return self.returncode if self.asked > 2 else None


@pytest.fixture
def runner(tmp_path: Path, monkeypatch) -> SimpleNamespace:
    """The program's functions, with jobs that only seem to run, a GPU that says what `free` holds, and no sleep."""
    far = SimpleNamespace(**runpy.run_path(str(FAR / "side_by_side.py")))
    far.free, far.names, far.out = tmp_path / "free", far.conduct.__globals__, tmp_path / "out"
    (far.out / "runs").mkdir(parents=True)
    (tool := tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nread -r answer < {far.free}; echo $answer\n")
    tool.chmod(0o755)
    far.free.write_text("2560\n")
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(far.names, "_APART", 0.0)
    monkeypatch.setattr("time.sleep", lambda seconds: None)

    def conduct(*jobs: dict[str, object], slots: int = 1, back: Path | None = None) -> bool:
        lines = (json.dumps({"file": "f", "cells": "c", **job}) for job in jobs)
        (tmp_path / "jobs.jsonl").write_text("\n".join(lines))
        return far.conduct(tmp_path / "jobs.jsonl", far.out, slots, back, 0)

    def done() -> list[list[str]]:
        return [line.split()[:2] for line in (far.out / "done.txt").read_text().splitlines()]

    return SimpleNamespace(**{**vars(far), "conduct": conduct, "done": done})


def test_a_job_waits_for_its_data_for_room_on_the_gpu_and_for_a_slot(
    runner, tmp_path: Path, monkeypatch, capsys
) -> None:
    """The GPU has 2.5 GiB free at first, and 3 once the first job has begun. Data come after that."""
    seen: list[tuple[object, ...]] = []
    data = tmp_path / "cifar10.npz"
    processes: list[Ended] = []

    def begin(job, out, lock):
        running = sum(one.asked < 3 for one in processes)
        seen.append((job["id"], data.exists(), runner.free.read_text().strip(), running))
        runner.free.write_text("3072\n")
        processes.append(Ended())
        return runner.Work(job, processes[-1], 0.0)

    monkeypatch.setitem(runner.names, "begin", begin)
    monkeypatch.setattr("time.sleep", lambda seconds: data.touch() if seen else None)
    jobs = [{"id": "data", "needs": ["cifar10"], "gib": 1}, {"id": "large", "gib": 3}, {"id": "small", "gib": 2.5}]
    assert runner.conduct(jobs[0], jobs[2])
    assert seen == [("small", False, "2560", 0), ("data", True, "3072", 0)]
    assert capsys.readouterr().err == "data waits for cifar10\n"
    assert runner.done() == [["small", "0"], ["data", "0"]]

    seen.clear()
    runner.free.write_text("99999\n")
    assert runner.conduct(*({"id": name, "gib": 1} for name in ("one", "two", "three")), slots=2)
    assert max(running for *_, running in seen) == 1

    seen.clear()
    runner.free.write_text("nothing\n")
    asked: list[float] = []

    def later(seconds):
        asked.append(seconds)
        runner.free.write_text("3071\n" if len(asked) < 3 else "3072\n")

    monkeypatch.setattr("time.sleep", later)
    assert runner.conduct(jobs[1], back=tmp_path / "back")
    assert [one[:3] for one in seen] == [("large", True, "3072")]
    assert capsys.readouterr().err.splitlines() == [
        "nvidia-smi does not say how much memory is free, but 'nothing'.",
        "large waits for 3 GiB of the GPU, and 2.9 are free",
    ]
    assert (tmp_path / "back/results.tar.xz").exists()
    (tmp_path / "nvidia-smi").unlink()
    assert runner.free_gib() == float("inf")


def test_what_the_disk_refuses_is_told_and_the_rest_goes_on(runner, tmp_path: Path, monkeypatch, capsys) -> None:
    def begin(job, out, lock):
        if job["id"] == "never":
            raise OSError("no room for a log")
        (out / "runs" / job["id"]).mkdir()
        return runner.Work(job, Ended(), 0.0)

    archives: list[int] = []

    def bring_back(out, folder):
        archives.append(len(archives))
        raise OSError("no room for an archive")

    monkeypatch.setitem(runner.names, "begin", begin)
    monkeypatch.setitem(runner.names, "bring_back", bring_back)
    (runner.out / "done.txt").mkdir()  # so that it cannot be written
    assert not runner.conduct({"id": "never", "gib": 1}, {"id": "fine", "gib": 1}, back=tmp_path / "back")
    told = capsys.readouterr().err
    assert [told.count(text) for text in ("for a log", "for an archive", "done.txt")] == [1, 1, 1]
    assert not [*(runner.out / "runs").iterdir()]
    assert len(archives) >= 4


def test_an_archive_holds_whole_files_only(tmp_path: Path) -> None:
    far = runpy.run_path(str(FAR / "side_by_side.py"))
    out = tmp_path / "out"
    for name in ("results/a.json", "results/.a.json.1f.partial", "logs/a.txt", "done.txt"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(name)
    far["bring_back"](out, tmp_path / "back")
    with tarfile.open(tmp_path / "back/results.tar.xz") as archive:
        assert {name: archive.extractfile(name).read().decode() for name in archive.getnames()} == {
            name: name for name in ("results/a.json", "logs/a.txt", "done.txt")
        }
