"""Break the rules one at a time and show that the tests notice.

    python tests/mutants.py [NAME ...]

The tables in `tests/mutants/`, one a room of the package, hold the broken rules: in ``file``, under src/counterpoise, the text ``find``,
which occurs once, becomes ``replace``, and ``tests`` must fail. A mutant is *caught* when a test
fails, *SURVIVED* when all pass, and *broken* when it says nothing about the tests: its text is not
there, the package no longer imports, nothing was collected, or it ran out of time. Names given as
arguments choose the mutants that contain one of them. What is not caught is tried once more, as a machine may be busy or
short of memory; a verdict says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "tests" / "mutants"
PACKAGE = Path("src", "counterpoise")
COPIED = ("src", "tests", "conftest.py", "pyproject.toml")
WORKERS = 2
SECONDS = 600

PASSED, FAILED, FOREIGN, UNIMPORTABLE, UNCOLLECTED = 0, 1, 90, 91, 92

# A worker: it imports what is slow to import and never changes, then forks for every job, in a copy of the
# checkout. It runs nothing itself, as a fork after OpenMP has run would hang. An import error or a collection error
# must not pass for a failing test, and under -x pytest gives both the same exit code: hence the plugin.
DRIVER = f"""
import importlib, json, os, pathlib, signal, sys, traceback
import pytest
for name in ("torch", "torch.func", "scipy.stats", "sklearn.datasets", "pandas", "pydantic", "typer", "flwr.app"):
    try:
        importlib.import_module(name)
    except ImportError:
        pass

class Collection:
    failed = False
    def pytest_collectreport(self, report):
        self.failed |= report.failed

def child(home, module, arguments):
    os.setsid()
    os.chdir(home)
    os.environ["PYTHONPATH"] = os.path.join(home, "src")
    sys.path[:] = [os.path.join(home, "src"), *(p for p in sys.path if p)]
    # An editable install finds the package by hooks of its own, before the path is looked at.
    sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__ + getattr(f, "__name__", "")]
    try:
        found = pathlib.Path(importlib.import_module(module).__file__).resolve()
    except BaseException:
        traceback.print_exc()
        return {UNIMPORTABLE}
    if not found.is_relative_to(home):
        print(found)
        return {FOREIGN}
    collection = Collection()
    code = pytest.main(arguments, plugins=[collection])
    return {UNCOLLECTED} if collection.failed else int(code)

answers = os.fdopen(os.dup(1), "w")
for line in sys.stdin:
    home, module, arguments, output, seconds = json.loads(line)
    pid = os.fork()
    if not pid:
        code = 3
        try:
            written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0), os.dup2(written, 1), os.dup2(written, 2)
            code = child(home, module, arguments)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(pid, signal.SIGKILL))
    signal.alarm(seconds)
    _, status = os.waitpid(pid, 0)
    signal.alarm(0)
    code = os.waitstatus_to_exitcode(status)
    print(json.dumps(code if code >= 0 else None), file=answers, flush=True)
"""

REASONS = {
    FOREIGN: "another copy of the package was imported",
    UNIMPORTABLE: "the module does not import",
    UNCOLLECTED: "the tests could not be collected",
    2: "pytest was interrupted",
    3: "pytest failed inside",
    4: "pytest does not know these tests",
    5: "there are no such tests",
}


@dataclass(frozen=True)
class Mutant:
    """One row of a table."""

    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]

    @property
    def module(self) -> str:
        """What must import; for a preset, which is no module, the package."""
        if not self.file.endswith(".py"):
            return "counterpoise"
        parts = ("counterpoise", *Path(self.file).with_suffix("").parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant: the word for it, then which test caught it or why it is broken."""

    word: str
    why: str = ""
    output: str = ""


def read(folder: Path) -> list[Mutant]:
    """The rows of the tables in a folder, or one sentence about the first that is wrong."""
    fields = set(Mutant.__dataclass_fields__)
    mutants: dict[str, Mutant] = {}
    for table in sorted(folder.glob("*.toml")):
        for number, row in enumerate(tomllib.loads(table.read_text(encoding="utf-8"))["mutant"], 1):
            label = row.get("name", f"number {number}")
            if set(row) != fields:
                sys.exit(f"{table.name}: mutant {label} must have exactly {', '.join(sorted(fields))}.")
            if not row["tests"] or row["find"] == row["replace"]:
                sys.exit(f"{table.name}: mutant {label} changes nothing or names no tests.")
            if label in mutants:
                sys.exit(f"{table.name}: two mutants are named {label}.")
            mutants[label] = Mutant(**{**row, "tests": tuple(row["tests"])})
    return list(mutants.values())


def copy(folder: Path) -> Path:
    """A copy of what the tests need."""
    ignore = shutil.ignore_patterns("__pycache__", ".*")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=ignore)
        elif source.exists():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name)
    return folder.resolve()


class Worker:
    """A copy of the checkout, and a process that runs tests on it."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        self.home = copy(folder / "checkout")
        self.output = folder / "output"
        environment = os.environ | {
            # A mutant can have the size and the second of the source before it: bytecode would be stale.
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "PYTEST_ADDOPTS": "",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER],
            cwd=self.home,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, module: str, tests: Sequence[str], seconds: int = SECONDS) -> tuple[int | None, str]:
        """The exit code, None when time ran out, and the output of some tests on the copy."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        # The mutated module may have imported a plugin of pytest already (anyio, by way of Flower); that is no failure.
        quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        arguments = ["-x", "-q", "-p", "no:cacheprovider", *quiet, *tests]
        print(
            json.dumps([str(self.home), module, arguments, str(self.output), seconds]),
            file=self.process.stdin,
            flush=True,
        )
        code = json.loads(self.process.stdout.readline())
        return code, self.output.read_text(encoding="utf-8", errors="replace")

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def judge(mutant: Mutant, worker: Worker) -> Verdict:
    """Apply the mutant in the copy, run its tests, and put the source back."""
    path = worker.home / PACKAGE / mutant.file
    if not path.is_file():
        return Verdict("broken", f"there is no file {mutant.file}")
    source = path.read_text(encoding="utf-8")
    count = source.count(mutant.find)
    if count != 1:
        return Verdict("broken", f"its text occurs {count} times in {mutant.file}")
    path.write_text(source.replace(mutant.find, mutant.replace), encoding="utf-8")
    try:
        code, output = worker.run(mutant.module, mutant.tests)
    finally:
        path.write_text(source, encoding="utf-8")
    if code == FAILED:
        first = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
        return Verdict("caught", f"by {first[1]}" if first else "")
    if code == PASSED:
        return Verdict("SURVIVED")
    why = f"it ran for over {SECONDS} s" if code is None else REASONS.get(code, f"exit code {code}")
    return Verdict("broken", why, output)


def main(words: Sequence[str]) -> int:
    """Judge the mutants whose names contain one of the words, all without words."""
    mutants = [m for m in read(TABLES) if not words or any(word in m.name for word in words)]
    if not mutants:
        print(f"no mutant is named like {' or '.join(words)}" if words else "there are no mutants", file=sys.stderr)
        return 2
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, contextlib.ExitStack() as ending:
        idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        workers = [Worker(Path(folder) / str(number)) for number in range(WORKERS)]
        for worker in workers:
            ending.callback(worker.end)
            idle.put(worker)

        # Whole first, in as many parts as there are workers.
        tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
        with ThreadPoolExecutor(WORKERS) as pool:
            parts = [tests[number::WORKERS] for number in range(WORKERS)]
            for code, output in pool.map(
                lambda some: some[0].run("counterpoise", some[1], 6 * SECONDS) if some[1] else (PASSED, ""),
                zip(workers, parts, strict=True),
            ):
                if code != PASSED:
                    print(output)
                    print("mutants: the tests must pass before anything is broken", file=sys.stderr)
                    return 1

        def turn(mutant: Mutant) -> Verdict:
            worker = idle.get()
            try:
                first = judge(mutant, worker)
                if first.word == "caught":
                    return first
                second = judge(mutant, worker)
                return replace(
                    second, why=f"{second.why} (at first {' '.join((first.word, first.why)).strip()})".strip()
                )
            finally:
                idle.put(worker)

        counts = {"caught": 0, "SURVIVED": 0, "broken": 0}
        width = max(len(mutant.name) for mutant in mutants)
        with ThreadPoolExecutor(WORKERS) as pool:
            for mutant, verdict in zip(mutants, pool.map(turn, mutants), strict=True):
                counts[verdict.word] += 1
                print(f"{mutant.name:<{width}}  {verdict.word:<8}  {verdict.why}".rstrip(), flush=True)
                if verdict.output:
                    print("    " + "\n    ".join(verdict.output.strip().splitlines()[-15:]), flush=True)
    tally = ", ".join(f"{count} {word.lower()}" for word, count in counts.items())
    print(f"mutants: {tally} in {time.monotonic() - began:.0f} s")
    return 0 if counts["caught"] == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
