"""The live table of a comparison or a study: each row's runs, rounds, accuracy, spread over seeds and time left."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from counterpoise.comparisons.collection import Group as Runs
from counterpoise.comparisons.conduct import News
from counterpoise.comparisons.plan import Piece, Plan
from counterpoise.comparisons.wording import clock, number, roughly
from counterpoise.comparisons.worker import display_metrics
from counterpoise.display.live import live, now_and_then
from counterpoise.measures import CLIENT, PERSONAL, across_seeds, measured_as, metric_words, plain_name
from counterpoise.runs.saved import SavedRun
from counterpoise.screens import watching
from counterpoise.texts import counted

__all__ = ["Board", "plan_board", "shown"]

_BETWEEN_LINES = 30.0
"""Seconds between two lines of a log."""


@dataclass
class _Run:
    """What is known about one piece."""

    rounds: int
    done: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    """The latest value of each."""
    seconds: float = 0.0
    """Time taken by the rounds counted in `seen`."""
    seen: int = 0
    end: str = ""


class Board:
    """The table's content. Each row stands for several runs. `hear` updates it, and `render` draws it."""

    def __init__(
        self,
        first: str,
        source: str,
        rows: Mapping[str, Sequence[Piece]],
        at_once: int,
        metric: str = "accuracy",
        paces: Mapping[str, float] | None = None,
    ) -> None:
        """`first` heads the first column. Without a metric, only runs, rounds and time are shown.

        `paces` are the seconds that a round of some rows took in earlier runs. They count until a row has rounds.
        """
        self.first, self.source, self.metric, self.at_once, self.paces = first, source, metric, at_once, paces or {}
        self.rows = {label: [piece.place for piece in pieces] for label, pieces in rows.items()}
        self.runs = {piece.place: _Run(int(piece.values["rounds"])) for pieces in rows.values() for piece in pieces}

    def know(self, place: str, kept: SavedRun) -> None:
        """Take in what a run did before."""
        run = self.runs[place]
        run.done = len(kept.records)
        for record in kept.records:
            run.metrics |= display_metrics(record)
        run.seconds, run.seen = sum(r.seconds for r in kept.records), len(kept.records)
        self._end(run, kept.status if kept.status in ("finished", "diverged") else "")

    def hear(self, news: News | None) -> None:
        """Take in a worker's news."""
        if news is None:
            return
        run = self.runs[news.piece.place]
        if news.end:
            self._end(run, news.end)
            return
        run.done, run.seconds, run.seen = news.round, run.seconds + news.seconds, run.seen + 1
        run.metrics |= news.metrics or {}

    @staticmethod
    def _end(run: _Run, end: str) -> None:
        """Note how a run ended. One that finished before its last round, by its rule, has no rounds left."""
        run.end, run.rounds = end, run.done if end == "finished" else run.rounds

    def left(self, label: str | None = None) -> float:
        """Estimated seconds until a row, or everything, is done; NaN while there is nothing to estimate from."""
        total = 0.0
        every = list(self.runs.values())
        overall = _pace(every, sum(self.paces.values()) / len(self.paces) if self.paces else math.nan)
        for name, places in self.rows.items():
            if label is not None and name != label:
                continue
            runs = [self.runs[place] for place in places]
            left = sum(run.rounds - run.done for run in runs if not run.end)
            total += left * _pace(runs, self.paces.get(name, overall)) if left else 0.0
        return total / max(1, min(self.at_once, sum(not run.end for run in every)))

    def render(self) -> RenderableType:
        """Draw the table as it is now."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True, header_style="dim")
        table.add_column(self.first, overflow="fold", ratio=2)
        table.add_column("runs", justify="right")
        table.add_column("rounds", ratio=1, min_width=8)
        known = {name for run in self.runs.values() for name in run.metrics}
        metric = measured_as(self.metric, known, personal=PERSONAL + self.metric in known)
        personal = PERSONAL + metric in known
        measured = [metric_words(metric), *(["personal"] if personal else []), "spread"] if metric else []
        for head in (*measured, "left"):
            table.add_column(head, justify="right", no_wrap=True)
        for label, places in self.rows.items():
            runs = [self.runs[place] for place in places]
            ended = sum(bool(run.end) for run in runs)
            table.add_row(
                Text(label),
                f"{ended}/{len(runs)}",
                ProgressBar(sum(run.rounds for run in runs), sum(run.done for run in runs), finished_style="green"),
                *(_measured(runs, metric, personal) if metric else ()),
                "" if ended == len(runs) else clock(self.left(label)),
            )
        return Group(table, Text(self.line(), style="dim"))

    def line(self) -> str:
        """How far everything is."""
        ended = sum(bool(run.end) for run in self.runs.values())
        line = f"{self.source}: {ended} of {counted(len(self.runs), 'run')} done, {counted(self.at_once, 'worker')}"
        left = roughly(self.left()) if ended < len(self.runs) else ""
        return f"{line}, {left} left" if left else line


def _pace(runs: Sequence[_Run], otherwise: float) -> float:
    """The seconds that a round of these runs took."""
    seen = sum(run.seen for run in runs)
    return sum(run.seconds for run in runs) / seen if seen else otherwise


def _measured(runs: Sequence[_Run], metric: str, personal: bool) -> Iterator[RenderableType]:
    """The metric of a row, that of its personal models if there are any, and its spread."""
    name = plain_name(metric)
    would_use = (PERSONAL + name, CLIENT + name)
    mean, spread = _across(runs, *(would_use if metric.startswith(PERSONAL) else [metric]))
    own, _ = _across(runs, *would_use)
    failed = any(run.end in ("failed", "diverged") for run in runs)
    yield Text("failed", style="red") if failed else number(mean, metric)
    if personal:
        yield number(own, metric)
    yield number(spread, metric)


def plan_board(plan: Plan, before: Sequence[Runs], at_once: int, metric: str = "") -> Board:
    """The table of a comparison or a sweep, with a row for each arm. `before` is what its runs did earlier.

    By default, the metric is accuracy.
    """
    pieces = {arm.label: list(plan.pieces(arm)) for arm in plan.arms}
    board = Board(plan.arm_word, plan.title, pieces, at_once, metric or "accuracy")
    for group in before:
        places = {piece.seed: piece.place for piece in pieces[group.label]}
        for kept in group.runs:
            board.know(places[kept.seed], kept)
    return board


def _across(runs: Sequence[_Run], *metrics: str) -> tuple[float, float]:
    """Mean and spread over the finished seeds only: unfinished ones would distort them.

    Of several metrics, the first that a run has counts.
    """
    found = [(run, [run.metrics[metric] for metric in metrics if metric in run.metrics]) for run in runs]
    done = [values[0] for run, values in found if values and run.end == "finished"]
    return across_seeds(done or [values[0] for _, values in found if values][:1])


@contextlib.contextmanager
def shown(
    board: Board, progress: bool | None = None, log: Callable[[str], object] | None = None
) -> Iterator[Callable[[News | None], None]]:
    """Show the board while the block runs, if somebody watches, and yield the function that takes news.

    `progress` switches it on or off, as in `counterpoise.simulate`. If nobody watches, `log` gets a line now and then.
    """
    seen = watching(progress)
    with live(board.render, leave=False) if seen else contextlib.nullcontext(_lines(board, log)) as changed:

        def hear(news: News | None) -> None:
            board.hear(news)
            changed()

        yield hear


def _lines(board: Board, log: Callable[[str], object] | None) -> Callable[[], object]:
    """A function to call after every change; now and then it logs how far everything is."""
    if log is None:
        return lambda: None
    write = now_and_then(lambda: log(board.line()), _BETWEEN_LINES)
    return lambda: write(False)
