"""The parent's side of a worker process: it sends lists of pieces and reads the worker's news, in lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

from counterpoise.comparisons.placement import Place
from counterpoise.comparisons.plan import Piece
from counterpoise.own import folders
from counterpoise.runs.trust import own_names

__all__ = ["Heard", "Worker", "own_code"]

Heard: TypeAlias = "queue.Queue[tuple[Worker, dict[str, Any] | None]]"
"""What workers say, each line with its worker; None means that it has ended."""


def own_code(pieces: Sequence[Piece]) -> dict[str, str]:
    """The user's own code that pieces name, and the folders that it is imported from."""
    return folders(own_names([piece.values for piece in pieces]))


class Worker:
    """A worker process, and the pieces it is running."""

    def __init__(
        self,
        heard: Heard,
        log: IO[bytes],
        lock: int | None,
        place: Place,
        environment: Mapping[str, str],
        where: str | None = None,
    ) -> None:
        self.place = place
        self.pieces: dict[int, Piece] = {}
        """The pieces that have not ended, by their places in the list that was given."""
        self.young = True
        """Whether it has not finished a round yet, so that it will still take more memory."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "counterpoise.comparisons.worker"],  # -P: not from the cwd
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # only the parent gets Ctrl-C
            cwd=where,
            env={**os.environ, **environment},
            pass_fds=() if lock is None else (lock,),
        )
        threading.Thread(target=self._hear, args=(heard,), daemon=True).start()

    def _hear(self, heard: Heard) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                heard.put((self, json.loads(line)))
        heard.put((self, None))

    def give(
        self,
        folder: Path,
        pieces: Sequence[Piece],
        together: int | None,
        sharing: int = 1,
        own: Mapping[str, str] | None = None,
    ) -> None:
        """Give it pieces, of which at most `together` form a batch. `sharing` is how many workers share its memory.

        `own` says where the user's own code is; by default as in this process.
        """
        assert self._process.stdin is not None
        self.pieces = dict(enumerate(pieces))
        order = [{"folder": str(folder / piece.place), "values": piece.values} for piece in pieces]
        said = {
            "pieces": order,
            "together": together,
            "sharing": sharing,
            "own": own_code(pieces) if own is None else own,
        }
        with contextlib.suppress(BrokenPipeError):  # it has died, which its output will show
            self._process.stdin.write(json.dumps(said) + "\n")
            self._process.stdin.flush()

    def dismiss(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def wait(self) -> int:
        """Wait for its exit status. A second Ctrl-C stops waiting and leaves the process running."""
        return self._process.wait()
