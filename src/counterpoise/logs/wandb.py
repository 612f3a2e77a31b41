"""Weights & Biases: one W&B run per run, online or, with WANDB_MODE=offline, in files that `wandb sync` uploads."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.errors import CounterpoiseError
from counterpoise.logs.base import LOGGERS, Logger, Start, scalars

__all__ = ["wandb"]


def wandb(project: str = "counterpoise", folder: str | Path | None = None) -> Logger:
    """A logger that writes to a W&B project. Its files go into `folder`, by default the current one.

    The id of the W&B run follows from the run's folder, so that a resumed run is found again. W&B drops rounds that it
    has already.
    """
    runs: list[Any] = []

    def begin(start: Start) -> None:
        try:
            import wandb
        except ImportError:
            raise CounterpoiseError("W&B is not installed: pip install 'counterpoise[wandb]'") from None
        run = wandb.init(
            project=project,
            name=f"{start.method}-{start.seed}",
            dir=folder,
            config=dict(start.settings) or {"method": start.method, "seed": start.seed},
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
            id=None if start.folder is None else _id(start.folder),
            resume="allow" if start.folder is not None and start.round else None,
        )
        runs.append(run)

    def round(record: RoundRecord) -> None:
        runs[-1].log(scalars(record), step=record.round)

    def end(status: str) -> None:
        runs.pop().finish(exit_code=0 if status == "finished" else 1)

    return Logger(begin, round, end)


def _id(folder: Path) -> str:
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]


LOGGERS["wandb"] = wandb
