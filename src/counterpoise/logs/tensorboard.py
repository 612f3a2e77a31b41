"""TensorBoard: event files, in the run's folder unless another one is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.errors import CounterpoiseError
from counterpoise.logs.base import LOGGERS, Logger, Start, scalars

__all__ = ["tensorboard"]


def tensorboard(folder: str | Path | None = None) -> Logger:
    """A logger that writes event files into `folder`, by default ``tensorboard`` in the run's own.

    A run that resumes from an earlier round hides the events after that round.
    """
    writers: list[Any] = []

    def begin(start: Start) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise CounterpoiseError("TensorBoard is not installed: pip install 'counterpoise[tensorboard]'") from None
        place = folder or (None if start.folder is None else start.folder / "tensorboard")
        if place is None:
            raise CounterpoiseError("Say where TensorBoard's events go: cp.logs.tensorboard('folder').")
        writer = SummaryWriter(str(place), purge_step=start.round + 1 if start.round else None)
        settings = start.settings or {"method": start.method, "seed": start.seed}
        writer.add_text("settings", f"```json\n{json.dumps(settings, indent=1, default=str)}\n```", start.round)
        writers.append(writer)

    def round(record: RoundRecord) -> None:
        for name, value in scalars(record).items():
            writers[-1].add_scalar(name, value, record.round)

    def end(status: str) -> None:
        writers.pop().close()

    return Logger(begin, round, end)


LOGGERS["tensorboard"] = tensorboard
