"""What `benchmarks/far` does to bring data to a machine that is far away."""

from __future__ import annotations

import runpy
import subprocess
import sys
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
