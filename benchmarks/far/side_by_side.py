"""Run cells of several studies side by side, as processes of their own, on one GPU.

    nvidia-cuda-mps-control -d
    COUNTERPOISE_COMMIT=... setsid python benchmarks/far/side_by_side.py JOBS.jsonl OUT --slots 14 --back $OUT &

Small models leave most of a GPU idle, and MPS lets a dozen processes share it. Each line of JOBS.jsonl is a job, first
come, first served; lines may be added while it runs:

    {"id": "sparse", "file": "studies/worlds.toml", "cells": "cifar10-sparse", "needs": ["cifar10"], "gib": 12}

`id`, `file` and `cells` must be there; `methods`, `seeds`, `together` and `jobs` (1 if it does not say) are those of
`study run`. `jobs.py` writes such lines. A job is passed over until the data folder (COUNTERPOISE_DATA) has the files
that it needs, and starts once so many GiB of the GPU are free (12 if it does not say). Jobs start two seconds apart,
but what one takes grows for a minute: ask for the room of those that are starting too.

Its results are OUT/results/ID.json; given those of an earlier attempt, it does only the rest. If it fails, as when
memory ran out, it is tried again, four times in all. The folder of its runs is removed when it ends, since the
checkpoints of a hundred runs fill a disk. OUT/done.txt names the jobs that ended, with their exit status; those with 0
are not begun again. With --back, FOLDER/results.tar.xz holds all results, logs and done.txt, and is written anew every
15 seconds, so that whatever cuts the machine off, that much is there. It ends when no job is left, and says so. The
error stream names, once each, a line that is no job (yet), a job that waits for data, and what went wrong when a job
was to begin or the archive to be written, which is tried again. OUT/lock is held until it and all its jobs have ended,
however they end: only one such program works in OUT.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.federation.sources.folder import data_folder

_GIB, _TRIES, _APART, _BETWEEN = 12.0, 4, 2.0, 15.0
_OPTIONS = ("methods", "together", "seeds", "jobs")
Job = dict[str, Any]


@dataclass
class Work:
    """A job that runs."""

    job: Job
    process: subprocess.Popen[bytes]
    since: float


def command(job: Job, out: Path) -> list[str]:
    words = [sys.executable, "-m", "counterpoise", "study", "run", job["file"], "--cells", job["cells"]]
    words += ["--results", str(out / "results" / f"{job['id']}.json"), "--out", str(out / "runs" / job["id"])]
    job = {"jobs": 1, **job}
    return words + [word for name in _OPTIONS if name in job for word in (f"--{name}", str(job[name]))]


def tell(text: str, told: set[str]) -> None:
    """Say something once."""
    if text not in told:
        told.add(text)
        print(text, file=sys.stderr, flush=True)


def listed(path: Path, told: set[str]) -> list[Job]:
    """The jobs in the file; a line that is none is named once."""
    jobs = []
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in filter(str.strip, text.splitlines()):
        try:
            jobs.append(checked({"gib": _GIB, "needs": [], **json.loads(line)}))
        except (ValueError, KeyError, TypeError):
            tell(f"{path}: this line is no job yet: {line}", told)
    return jobs


def checked(job: Job) -> Job:
    texts = [job["id"], job["file"], job["cells"], *job["needs"]]
    named = all(isinstance(text, str) for text in texts) and re.fullmatch(r"[\w=+-][\w.=+-]*", job["id"])
    if not (named and isinstance(job["needs"], list) and 0 <= job["gib"] < math.inf):
        raise ValueError(job)
    return job


def ready(job: Job) -> bool:
    """Whether the data that a job needs are here."""
    return all((data_folder() / f"{name}.npz").exists() for name in job["needs"])


def free_gib() -> float:
    """How much memory of the first GPU is free; without a GPU, any amount."""
    if not (tool := shutil.which("nvidia-smi")):
        return float("inf")
    words = [tool, "--id=0", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    answer = subprocess.run(words, capture_output=True, text=True).stdout.strip()
    if not answer.isdecimal():
        raise OSError(f"nvidia-smi does not say how much memory is free, but {answer!r}.")
    return int(answer) / 1024


def begin(job: Job, out: Path, lock: int) -> Work:
    with (out / "logs" / f"{job['id']}.txt").open("ab") as log:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command(job, out), stdout=log, stderr=log, env=environment, pass_fds=[lock])
    return Work(job, process, time.monotonic())


def end(work: Work, out: Path) -> None:
    """Remove a job's runs, and note that it has ended."""
    shutil.rmtree(out / "runs" / work.job["id"], ignore_errors=True)
    with (out / "done.txt").open("a") as done:
        done.write(f"{work.job['id']} {work.process.returncode} {time.monotonic() - work.since:.0f} s\n")


def ended_well(out: Path) -> Counter[str]:
    """The jobs that an earlier program here has done."""
    lines = (out / "done.txt").read_text().splitlines() if (out / "done.txt").is_file() else []
    return Counter(words[0] for words in map(str.split, lines) if words[1:2] == ["0"])


def bring_back(out: Path, folder: Path) -> None:
    """Write the archive of what has been found. Whoever takes it while it is written gets the one before.

    Jobs write meanwhile, so each file is read at once and whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(unfinished := folder / "results.part", "w:xz") as archive:
        for path in [*out.glob("results/*.json"), *out.glob("logs/*.txt"), *out.glob("done.txt")]:
            entry = tarfile.TarInfo(str(path.relative_to(out)))
            entry.size = len(found := path.read_bytes())
            archive.addfile(entry, io.BytesIO(found))
    unfinished.replace(folder / "results.tar.xz")


def conduct(jobs: Path, out: Path, slots: int, back: Path | None, lock: int) -> bool:
    """Run the jobs until none is left. Whether the last archive could be written."""
    begun, again, told = ended_well(out), set[str](), set[str]()
    running: list[Work] = []
    last_start = last_back = float("-inf")
    unwritten = 0
    while True:
        for work in [work for work in running if work.process.poll() is not None]:
            running.remove(work)
            if work.process.returncode and begun[work.job["id"]] < _TRIES:
                again.add(work.job["id"])
            with telling(told):
                end(work, out)
        left = [job for job in listed(jobs, told) if not begun[job["id"]] or job["id"] in again]
        for job in left:
            if not ready(job):
                tell(f"{job['id']} waits for {', '.join(job['needs'])}", told)
        now, job = time.monotonic(), next(filter(ready, left), None)
        with telling(told):
            turn = job is not None and len(running) < slots and now - last_start >= _APART
            room = free_gib() if turn else 0.0
            if job and turn and room < job["gib"] and not running:
                tell(
                    f"{job['id']} waits for {job['gib']:g} GiB of the GPU, and {math.floor(10 * room) / 10:g} are free",
                    told,
                )
            elif job and turn and room >= job["gib"]:
                last_start = now
                begun[job["id"]] += 1
                again.discard(job["id"])
                if begun[job["id"]] < _TRIES:
                    again.add(job["id"])  # unless it begins
                running.append(begin(job, out, lock))
                again.discard(job["id"])
        if back and (now - last_back > _BETWEEN or not (left or running)):
            last_back = now
            unwritten += 1
            with telling(told):
                bring_back(out, back)
                unwritten = 0
        if not (left or running) and not 0 < unwritten < _TRIES:
            return not unwritten
        time.sleep(0.5)


@contextlib.contextmanager
def telling(told: set[str]) -> Iterator[None]:
    """Go on if the disk or the GPU refuses something, and say so once."""
    try:
        yield
    except OSError as error:
        tell(str(error), told)


def positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise ValueError(text)
    return value


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("jobs", type=Path)
    words.add_argument("out", type=Path)
    words.add_argument("--slots", type=positive, default=14, help="most jobs at a time")
    words.add_argument(
        "--back", type=Path, metavar="FOLDER", help="write an archive of the results here, again and again"
    )
    given = words.parse_args()
    if not given.jobs.exists():
        raise SystemExit(f"There is no file {given.jobs}.")
    for name in ("results", "runs", "logs"):
        (given.out / name).mkdir(parents=True, exist_ok=True)
    with (given.out / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"Jobs run in {given.out} already.") from None
        try:
            whole = conduct(given.jobs, given.out, given.slots, given.back, lock.fileno())
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        if not whole:
            raise SystemExit(f"The last archive could not be written. The results are in {given.out}.")
    print("no job is left")


if __name__ == "__main__":
    main()
