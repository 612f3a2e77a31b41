"""What a worker of a cluster does: some pieces of a plan, in a process of their own on that worker's machine.

`carry_out` takes and returns what JSON can hold, so that any executor can send it anywhere. The pieces' folders lie on
a file system that all machines share.
"""

from __future__ import annotations

import os
import platform
import queue
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from counterpoise.comparisons.contents import LOG
from counterpoise.comparisons.placement import Place, device_of
from counterpoise.comparisons.plan import Piece
from counterpoise.comparisons.process import Heard, Worker, own_code
from counterpoise.comparisons.sign import gone
from counterpoise.federation.sources.folder import VARIABLE
from counterpoise.runs.files import check_plain, open_plain
from counterpoise.runs.locks import in_use

__all__ = ["carry_out", "order"]

_PATIENCE = 30.0
"""Seconds that the workers of an earlier command get to write their checkpoints."""
_SEEN = 5.0
"""Seconds until a file that one machine wrote must be seen by another."""
_SECONDS_BETWEEN_LOOKS = 0.5


def order(folder: Path, word: str, pieces: Sequence[Piece], together: int | None, sharing: int) -> dict[str, Any]:
    """What `carry_out` is sent: some pieces of the plan in a folder, whose sign has this word."""
    return {
        "version": _version(),
        "folder": str(folder),
        "word": word,
        "pieces": [vars(piece) for piece in pieces],
        "together": together,
        "sharing": sharing,
        "device": device_of(pieces[0]),
        "place": str(Path.cwd()),
        "own": own_code(pieces),
        "environment": {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {},
    }


def carry_out(order: Mapping[str, Any]) -> dict[str, Any]:
    """Run the pieces of an order. The runs stop with checkpoints when the sign in the folder is gone.

    Return how each piece ended, by its number; the worker's warnings; and a sentence that says why the other pieces were
    not run, empty if they were stopped.
    """
    folder, pieces = Path(order["folder"]), [Piece(**piece) for piece in order["pieces"]]
    if sentence := _why_not(order, folder):
        return {"ends": {}, "warnings": [], "sentence": sentence}
    check_plain(folder)
    until = time.monotonic() + _PATIENCE
    while any(in_use(folder / piece.place) for piece in pieces) and time.monotonic() < until:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    place = order["place"] if Path(order["place"]).is_dir() else None
    heard: Heard = queue.Queue()
    with os.fdopen(open_plain(folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as log:
        worker = Worker(heard, log, None, Place(), order["environment"], place)
        try:
            worker.give(folder, pieces, order["together"], _sharing(order), order["own"])
            return _heard_out(worker, heard, folder, order["word"])
        finally:
            worker.dismiss()
            worker.wait()


def _sharing(order: Mapping[str, Any]) -> int:
    """How many lists share the memory that this one uses: a machine's, or that of one of its GPUs."""
    import torch  # it is slow, and the process that does the pieces imports it anyway

    gpus = torch.cuda.device_count() if order["device"] != "cpu" else 0
    return -(-int(order["sharing"]) // max(gpus, 1))


def _version() -> str:
    try:
        return version("counterpoise")
    except PackageNotFoundError:  # it runs from its source
        return "of no version"


def _why_not(order: Mapping[str, Any], folder: Path) -> str:
    host = platform.node()
    if order["version"] != _version():
        return (
            f"The worker on {host} has counterpoise {_version()}, and this command is of {order['version']}. Install "
            "the same version on both."
        )
    until = time.monotonic() + _SEEN
    while gone(folder, order["word"]):
        if time.monotonic() > until:
            if not folder.is_dir():
                return (
                    f"The worker on {host} cannot see the folder {folder}. Choose one with --out on a file system that "
                    "all workers share, under the same path."
                )
            return (
                f"The worker on {host} does not see that this command is at work in {folder}: the folder there is "
                "another one, or its file system does not pass on file locks. Choose another with --out."
            )
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return ""


def _heard_out(worker: Worker, heard: Heard, folder: Path, word: str) -> dict[str, Any]:
    """Wait until every piece has ended, or the sign is gone and the worker has stopped."""
    ends: dict[str, Any] = {}
    warnings: list[str] = []
    looked, stopping = time.monotonic(), False
    while worker.pieces:
        if not stopping and time.monotonic() - looked > _SECONDS_BETWEEN_LOOKS:
            looked = time.monotonic()
            if stopping := gone(folder, word):
                worker.dismiss()
        try:
            _, said = heard.get(timeout=_SECONDS_BETWEEN_LOOKS)
        except queue.Empty:
            continue
        if said is None:
            how = f"Its process on {platform.node()} ended with status {worker.wait()} in the middle of the run"
            return {
                "ends": ends,
                "warnings": warnings,
                "sentence": "" if stopping else f"{how}, perhaps for lack of memory; see workers.log.",
            }
        if "warning" in said:
            warnings.append(said["warning"])
        if "end" in said:
            del worker.pieces[said["piece"]]
            ends[str(said["piece"])] = {"end": said["end"], "sentence": said["sentence"]}
    return {"ends": ends, "warnings": warnings, "sentence": ""}
