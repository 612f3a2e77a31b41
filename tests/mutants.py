"""Break the rules one at a time and show that the tests notice.

    python tests/mutants.py [NAME ...]

The tables in `tests/mutants/`, one a room of the package, hold the broken rules: in ``file``, under src/counterpoise, the text ``find``,
which occurs once, becomes ``replace``, and ``tests`` must fail. A mutant is *caught* when a test
fails, *SURVIVED* when all pass, and *broken* when it says nothing about the tests: its text is not
there, the package no longer imports, nothing was collected, or it ran out of time. Names given as
arguments choose the mutants that contain one of them.
"""

from __future__ import annotations

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
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "tests" / "mutants"
PACKAGE = Path("src", "counterpoise")
COPIED = ("src", "tests", "conftest.py", "pyproject.toml")
WORKERS = 2
SECONDS = 600

PASSED, FAILED, FOREIGN, UNIMPORTABLE, UNCOLLECTED = 0, 1, 90, 91, 92

# Runs in a process of its own, in a copy of the checkout. An import error or a collection error must
# not pass for a failing test, and under -x pytest gives both the same exit code: hence the plugin.
DRIVER = f"""
import importlib, pathlib, sys, traceback
import pytest

class Collection:
    failed = False
    def pytest_collectreport(self, report):
        self.failed |= report.failed

home, module, *arguments = sys.argv[1:]
try:
    found = pathlib.Path(importlib.import_module(module).__file__).resolve()
except BaseException:
    traceback.print_exc()
    sys.exit({UNIMPORTABLE})
if not found.is_relative_to(home):
    print(found)
    sys.exit({FOREIGN})
collection = Collection()
code = pytest.main(arguments, plugins=[collection])
sys.exit({UNCOLLECTED} if collection.failed else int(code))
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


def run(home: Path, module: str, tests: Sequence[str], threads: int) -> tuple[int | None, str]:
    """The exit code, None when time ran out, and the output of some tests on the copy in `home`."""
    environment = os.environ | {
        "PYTHONPATH": str(home / "src"),
        # A mutant can have the size and the second of the source before it: bytecode would be stale.
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYTEST_ADDOPTS": "",
    }
    options = ["-x", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-c", DRIVER, str(home), module, *options, *tests]
    try:
        done = subprocess.run(
            command,
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout


def judge(mutant: Mutant, home: Path) -> Verdict:
    """Apply the mutant in the copy, run its tests, and put the source back."""
    path = home / PACKAGE / mutant.file
    if not path.is_file():
        return Verdict("broken", f"there is no file {mutant.file}")
    source = path.read_text(encoding="utf-8")
    count = source.count(mutant.find)
    if count != 1:
        return Verdict("broken", f"its text occurs {count} times in {mutant.file}")
    path.write_text(source.replace(mutant.find, mutant.replace), encoding="utf-8")
    try:
        code, output = run(home, mutant.module, mutant.tests, threads=1)
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
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        homes: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for worker in range(WORKERS):
            homes.put(copy(Path(folder) / str(worker)))

        home = homes.get()
        tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
        code, output = run(home, "counterpoise", tests, threads=WORKERS)
        homes.put(home)
        if code != PASSED:
            print(output)
            print("mutants: the tests must pass before anything is broken", file=sys.stderr)
            return 1

        def turn(mutant: Mutant) -> Verdict:
            home = homes.get()
            try:
                return judge(mutant, home)
            finally:
                homes.put(home)

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
