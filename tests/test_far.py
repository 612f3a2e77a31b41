"""What `benchmarks/far` does to bring data to a machine that is far away."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np

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
    path.write_text('{"id": "a", "file": "f", "cells": "c", "seeds": 5}\n\n{"id": "b"}\n{"id": "c", "fi')
    for _ in range(2):
        assert [job["id"] for job in listed(path, told)] == ["a"]
    lines = capsys.readouterr().err.splitlines()
    assert [line.count("this line is no job yet") for line in lines] == [1, 1]


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
    job = {"id": "fine", "file": str(tmp_path / "study.toml"), "cells": "a", "methods": "fedavg"}
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


def test_a_job_waits_for_its_data_and_for_room_on_the_gpu(tmp_path: Path, monkeypatch) -> None:
    far = runpy.run_path(str(FAR / "side_by_side.py"))
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path))
    assert far["ready"]({})
    assert not far["ready"]({"needs": ["cifar10"]})
    (tmp_path / "cifar10.npz").touch()
    assert far["ready"]({"needs": ["cifar10"]})
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 2560\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert far["free_gib"]() == 2.5
    tool.unlink()
    assert far["free_gib"]() == float("inf")
