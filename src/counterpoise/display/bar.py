"""The progress of one run: rounds, accuracy, time left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from counterpoise.display.live import live
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.texts import clean, percent

__all__ = ["bar"]


@contextlib.contextmanager
def bar(title: str, rounds: int, leave: bool = True) -> Iterator[Callable[[RoundRecord], None]]:
    """Show a bar while the block runs. Yields the function that takes the rounds."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[found]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    drawn = Progress(*columns, expand=True)
    task = drawn.add_task(clean(title), total=rounds, found="")
    with live(drawn.get_renderable, leave) as changed:

        def hear(record: RoundRecord) -> None:
            if drawn.tasks[task].completed != record.round:
                drawn.update(task, completed=record.round, **_found(record))  # type: ignore[arg-type]
                changed()

        yield hear


def _found(record: RoundRecord) -> dict[str, str]:
    """What to show of a round; a round that measured nothing leaves what is there."""
    if "accuracy" in record.metrics:
        return {"found": f"accuracy {percent(record.metrics['accuracy'])}"}
    return {"found": f"loss {record.metrics['loss']:.4g}"} if "loss" in record.metrics else {}
