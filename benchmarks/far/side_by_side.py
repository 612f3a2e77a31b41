"""Run cells of several studies side by side, as processes of their own, on one GPU.

    nvidia-cuda-mps-control -d
    COUNTERPOISE_COMMIT=... python benchmarks/far/side_by_side.py JOBS.jsonl OUT --slots 14 &

Small models leave most of a GPU idle, and MPS lets a dozen processes share it. Each line of JOBS.jsonl is a job, first
come, first served; lines may be added while it runs:

    {"id": "sparse", "file": "studies/worlds.toml", "cells": "cifar10-sparse", "needs": ["cifar10"]}

`id`, `file` and `cells` must be there; `methods`, `seeds` and `together` are those of `study run`. A job waits until the
data folder (COUNTERPOISE_DATA) has the files that it needs. Its results are OUT/results/ID.json; given those of an
earlier attempt, it does only the rest. OUT/done.txt names the jobs that ended, with their exit status. A line that is
not whole, or not a job, waits until it is, and is named on the error stream. It ends when no job is left.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from counterpoise.federation.sources.folder import data_folder


def command(job: dict[str, Any], out: Path) -> list[str]:
    words = [sys.executable, "-m", "counterpoise", "study", "run", job["file"], "--cells", job["cells"], "--jobs", "1"]
    words += ["--results", str(out / "results" / f"{job['id']}.json"), "--out", str(out / "runs" / job["id"])]
    return words + [
        word for name in ("methods", "together", "seeds") if name in job for word in (f"--{name}", str(job[name]))
    ]


def listed(path: Path, told: set[str]) -> list[dict[str, Any]]:
    """The jobs in the file; a line that is none is named once."""
    jobs = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            job = json.loads(line)
            jobs.append({"id": job["id"], "file": job["file"], "cells": job["cells"], **job})
        except (ValueError, KeyError, TypeError):
            if line.strip() and line not in told:
                told.add(line)
                print(f"{path}: this line is no job yet: {line}", file=sys.stderr)
    return jobs


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("jobs", type=Path)
    words.add_argument("out", type=Path)
    words.add_argument("--slots", type=int, default=14, help="most jobs at a time")
    given = words.parse_args()
    for name in ("results", "runs", "logs"):
        (given.out / name).mkdir(parents=True, exist_ok=True)
    begun, told, running = set[str](), set[str](), dict[str, tuple[subprocess.Popen[bytes], float]]()
    while True:
        for name, (process, since) in list(running.items()):
            if process.poll() is not None:
                del running[name]
                with (given.out / "done.txt").open("a") as done:
                    done.write(f"{name} {process.returncode} {time.monotonic() - since:.0f} s\n")
        left = [job for job in listed(given.jobs, told) if job["id"] not in begun]
        if not left and not running:
            return
        for job in left:
            here = all((data_folder() / f"{name}.npz").exists() for name in job.get("needs", []))
            if here and len(running) < given.slots:
                begun.add(job["id"])
                with (given.out / "logs" / f"{job['id']}.txt").open("wb") as log:
                    environment = os.environ | {"OMP_NUM_THREADS": "1"}
                    process = subprocess.Popen(command(job, given.out), stdout=log, stderr=log, env=environment)
                running[job["id"]] = (process, time.monotonic())
        time.sleep(0.5)


if __name__ == "__main__":
    main()
