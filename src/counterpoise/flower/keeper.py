"""Runs a program, and ends it and all that it started when its owner does, however that ends.

A script that needs the standard library alone: ``python keeper.py PROGRAM ARGUMENT ...``. Its standard input is a pipe
that the owner holds open and never writes to; the system closes it when the owner is gone, even if it was killed. Flower's
programs start others in sessions of their own, and those outlive a killed parent: the keeper has such orphans handed to it.

The keeper may be killed itself, so there are two: the first runs the second as its program, and holds its standard input.
Whichever is killed, the other ends what is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["descendants", "end_descendants"]

_SECONDS_TO_END = 5.0
_SECONDS_BETWEEN_LOOKS = 0.2
_SECOND = "--second"
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of Linux's prctl: orphans below become this process's children


def main(command: list[str]) -> int:
    """Run a program until it ends or the owner does; then end what is left, and say how the program ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    if command[0] == _SECOND:
        program = subprocess.Popen(command[1:], stdin=subprocess.DEVNULL)
    else:
        program = subprocess.Popen([sys.executable, "-I", __file__, _SECOND, *command], stdin=subprocess.PIPE)
    owned = True
    while owned and program.poll() is None:
        owned = not select.select([sys.stdin], [], [], _SECONDS_BETWEEN_LOOKS)[0]
    if not owned:
        _bid_end(program)
    end_descendants(os.getpid())
    status = program.wait()
    return status if status >= 0 else 128 - status  # as a shell tells of a signal


def _bid_end(program: subprocess.Popen[bytes]) -> None:
    """Have a program end; a second keeper has its own program end before, which takes as long again."""
    if program.stdin is None:
        program.terminate()
    else:
        program.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(_SECONDS_TO_END if program.stdin is None else 2 * _SECONDS_TO_END)


def end_descendants(pid: int) -> None:
    """Kill all that a process started, and what they start meanwhile."""
    deadline = time.monotonic() + _SECONDS_TO_END
    while (found := descendants(pid)) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)


def descendants(pid: int) -> list[int]:
    """All that a process started and that still runs, and these in turn."""
    pairs = _parents()
    found, todo = [], [pid]
    while todo:
        above = todo.pop()
        below = [child for child, parent in pairs if parent == above]
        found += below
        todo += below
    return found


def _parents() -> list[tuple[int, int]]:
    """Every process that has not ended, and its parent. Small images have no `ps`, other systems no `/proc`."""
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(["ps", "-eo", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
        rows = [line.split() for line in listed.splitlines()]
        return [(int(pid), int(parent)) for pid, parent, state in rows if not state.startswith("Z")]
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone meanwhile
            # "12 (a name) S 1 ...": the name may hold anything
            state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z":
                found.append((int(path.parent.name), int(parent)))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
