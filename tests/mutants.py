"""Break the rules one at a time and show that the tests notice.

    python tests/mutants.py [--tested] [NAME ...]

The tables in `tests/mutants/`, one for each room of the package, hold the broken rules: in ``file``, under
src/counterpoise, the text ``find``, which occurs once, becomes ``replace``, and ``tests`` must fail. A mutant is
*caught* if a test fails, *SURVIVED* if all pass, and *broken* if it says nothing about the tests: its text is not
there, the package no longer imports, nothing was collected, or it ran out of time. Names given as arguments choose the
mutants that contain one of them. A mutant that is not caught is tried once more, because a machine may be busy or
short of memory; the verdict says so.

The tests must pass before anything is broken, so they run once on the unbroken package. ``--tested`` leaves this out:
for CI, where the whole suite has just passed on the same commit.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import json
import os
import py_compile
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
WORKERS = 2
SECONDS = 600

PASSED, FAILED, FOREIGN, UNIMPORTABLE, UNCOLLECTED = 0, 1, 90, 91, 92

# What the tests and pytest import, is slow to import and never changes.
PRELOADED = (
    *("torch", "torch.func", "scipy.stats", "sklearn.datasets", "pandas", "pydantic", "typer", "flwr.app", "anyio"),
    *("hypothesis.core", "hypothesis.strategies", "hypothesis.internal.conjecture.engine"),
    *("hypothesis.internal.conjecture.shrinker", "hypothesis.extra.numpy", "doctest", "pdb", "xml.etree.ElementTree"),
)

# A worker: it imports what is slow to import, then forks for every job, in a copy of the checkout. It runs nothing
# itself, because a fork after OpenMP has run would hang. An import error or a collection error must not pass for a
# failing test, and under -x pytest gives both the same exit code: hence the plugin. What was imported is frozen, so
# that no child's garbage collection walks it, which would also copy its memory.
DRIVER = f"""
import gc, importlib, json, os, pathlib, signal, sys, traceback
import pytest
for name in {PRELOADED}:
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
gc.collect()
gc.freeze()
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
    _, status, used = os.wait4(pid, 0)
    signal.alarm(0)
    code = os.waitstatus_to_exitcode(status)
    answer = code if code >= 0 else None, used.ru_utime + used.ru_stime
    print(json.dumps(answer), file=answers, flush=True)
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
    """What became of a mutant: one word, the processor time it took, and which test caught it or why it is broken."""

    word: str
    seconds: float = 0.0
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
    """A copy of the checkout, as git would commit it.

    Its bytecode is bound to the source by a hash: a mutant can have the size and the second of the source before it,
    and would pass for it by its time stamp.
    """
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    compileall.compile_dir(folder / PACKAGE, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    return folder.resolve()


class Worker:
    """A copy of the checkout, and a process that runs tests on it."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        self.home = copy(folder / "checkout")
        self.output = folder / "output"
        environment = os.environ | {
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "PYTEST_ADDOPTS": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER],
            cwd=self.home,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, module: str, tests: Sequence[str], seconds: int = SECONDS) -> tuple[int | None, float, str]:
        """Run tests on the copy: the exit code, None if time ran out, the processor time and the output."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        # The plugin of hypothesis has been imported already, unavoidably; that is no failure.
        quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        arguments = ["-x", "-q", "-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin", *quiet, *tests]
        print(
            json.dumps([str(self.home), module, arguments, str(self.output), seconds]),
            file=self.process.stdin,
            flush=True,
        )
        code, used = json.loads(self.process.stdout.readline())
        return code, used, self.output.read_text(encoding="utf-8", errors="replace")

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def judge(mutant: Mutant, worker: Worker) -> Verdict:
    """Apply the mutant in the copy, run its tests, and put the source back."""
    path = worker.home / PACKAGE / mutant.file
    if not path.is_file():
        return Verdict("broken", why=f"there is no file {mutant.file}")
    source = path.read_text(encoding="utf-8")
    count = source.count(mutant.find)
    if count != 1:
        return Verdict("broken", why=f"its text occurs {count} times in {mutant.file}")
    path.write_text(source.replace(mutant.find, mutant.replace), encoding="utf-8")
    try:
        code, used, output = worker.run(mutant.module, mutant.tests)
    finally:
        path.write_text(source, encoding="utf-8")
    if code == FAILED:
        first = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
        return Verdict("caught", used, f"by {first[1]}" if first else "")
    if code == PASSED:
        return Verdict("SURVIVED", used)
    why = f"it ran for over {SECONDS} s" if code is None else REASONS.get(code, f"exit code {code}")
    return Verdict("broken", used, why, output)


def main(words: Sequence[str], tested: bool = False) -> int:
    """Judge the mutants whose names contain one of the words, or all of them; `tested`: the suite has just passed."""
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

        # Unbroken first, in as many parts as there are workers.
        tests = [] if tested else list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
        with ThreadPoolExecutor(WORKERS) as pool:
            parts = [tests[number::WORKERS] for number in range(WORKERS)]
            for code, _, output in pool.map(
                lambda some: some[0].run("counterpoise", some[1], 6 * SECONDS) if some[1] else (PASSED, 0.0, ""),
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
                before = f"(at first {' '.join((first.word, first.why)).strip()})"
                return replace(second, why=f"{second.why} {before}".strip())
            finally:
                idle.put(worker)

        counts = {"caught": 0, "SURVIVED": 0, "broken": 0}
        width = max(len(mutant.name) for mutant in mutants)
        with ThreadPoolExecutor(WORKERS) as pool:
            for mutant, verdict in zip(mutants, pool.map(turn, mutants), strict=True):
                counts[verdict.word] += 1
                print(
                    f"{mutant.name:<{width}}  {verdict.word:<8}  {verdict.seconds:5.1f} s  {verdict.why}".rstrip(),
                    flush=True,
                )
                if verdict.output:
                    print("    " + "\n    ".join(verdict.output.strip().splitlines()[-15:]), flush=True)
    tally = ", ".join(f"{count} {word.lower()}" for word, count in counts.items())
    print(f"mutants: {tally} in {time.monotonic() - began:.0f} s")
    return 0 if counts["caught"] == len(mutants) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", metavar="NAME", nargs="*", help="judge the mutants whose names contain it")
    parser.add_argument("--tested", action="store_true", help="the suite has just passed: break at once")
    asked = parser.parse_args()
    sys.exit(main(asked.words, asked.tested))
