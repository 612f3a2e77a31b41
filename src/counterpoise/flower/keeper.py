"""Run a program, and end it and all processes it started as soon as its owner ends, in whatever way.

This is a script that needs only the standard library: ``python keeper.py PROGRAM ARGUMENT ...``. Its standard input is
a pipe that the owner holds open and never writes to. The system closes the pipe when the owner ends, even if it was
killed. Flower's programs start others in sessions of their own, which outlive a killed parent; the keeper adopts such
orphans.

The keeper may be killed too, so there are two: the first runs the second as its program and holds its standard input
open. If one is killed, the other ends all that is left.
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
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of Linux's prctl: this process becomes the parent of orphaned descendants


def main(command: list[str]) -> int:
    """Run a program until it or the owner ends. Then end all that is left, and return the program's exit status."""
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
    return status if status >= 0 else 128 - status  # as a shell reports a signal


def _bid_end(program: subprocess.Popen[bytes]) -> None:
    """Ask a program to end and wait. A second keeper first ends its own program, so it gets twice the time."""
    if program.stdin is None:
        program.terminate()
    else:
        program.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(_SECONDS_TO_END if program.stdin is None else 2 * _SECONDS_TO_END)


def end_descendants(pid: int) -> None:
    """Kill all descendants of a process, and those that they start in the meantime."""
    deadline = time.monotonic() + _SECONDS_TO_END
    while (found := descendants(pid)) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)


def descendants(pid: int) -> list[int]:
    """The running children of a process, their children, and so on."""
    pairs = _parents()
    found, todo = [], [pid]
    while todo:
        above = todo.pop()
        below = [child for child, parent in pairs if parent == above]
        found += below
        todo += below
    return found


def _parents() -> list[tuple[int, int]]:
    """Every running process and its parent. Read from `/proc`, as small images have no `ps`; elsewhere from `ps`."""
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(["ps", "-eo", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
        rows = [line.split() for line in listed.splitlines()]
        return [(int(pid), int(parent)) for pid, parent, state in rows if not state.startswith("Z")]
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            # "12 (a name) S 1 ...": the name may contain anything
            state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z":
                found.append((int(path.parent.name), int(parent)))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
