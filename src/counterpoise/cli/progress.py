"""The progress bar: rounds, accuracy, time left. It is shown only on a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from counterpoise.cli.screen import Console
from counterpoise.engine.backends.distributed import rank
from counterpoise.engine.rounds.records import RoundRecord

__all__ = ["watched"]


@contextlib.contextmanager
def watched(title: str, rounds: int) -> Iterator[Callable[[RoundRecord], None] | None]:
    """A callback that moves the bar each round; None if standard error is no terminal, or on ranks other than 0."""
    console = Console(stderr=True)
    if not console.is_terminal or rank():
        yield None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[found]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, expand=True, transient=True) as progress:
        task = progress.add_task(title, total=rounds, found="")

        def on_round(record: RoundRecord) -> None:
            changes = {}
            if "accuracy" in record.metrics:
                changes["found"] = f"accuracy {record.metrics['accuracy']:.1%}"
            elif "loss" in record.metrics:
                changes["found"] = f"loss {record.metrics['loss']:.4g}"
            progress.update(task, completed=record.round, **changes)  # type: ignore[arg-type]

        yield on_round
