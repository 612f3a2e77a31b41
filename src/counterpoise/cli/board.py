"""The live table of a comparison: each arm's runs, rounds, accuracy, spread over seeds and time left."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from counterpoise.cli.screen import Console
from counterpoise.cli.tables import clock, number
from counterpoise.comparisons.collection import Group as Runs
from counterpoise.comparisons.conduct import News
from counterpoise.comparisons.plan import Plan
from counterpoise.comparisons.worker import told
from counterpoise.measures import across_seeds

__all__ = ["Board", "shown"]


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
    """The table's content. `hear` updates it, and `render` draws it."""

    def __init__(self, plan: Plan, before: Sequence[Runs], at_once: int, metric: str = "accuracy") -> None:
        self.plan, self.metric, self.at_once = plan, metric, at_once
        self.runs = {
            (arm.label, piece.seed): _Run(int(piece.values["rounds"]))
            for arm in plan.arms
            for piece in plan.pieces(arm)
        }
        for group in before:
            for kept in group.runs:
                run = self.runs[group.label, kept.seed]
                run.done = len(kept.records)
                for record in kept.records:
                    run.metrics |= told(record)
                run.seconds, run.seen = sum(r.seconds for r in kept.records), len(kept.records)
                run.end = kept.status if kept.status in ("finished", "diverged") else ""

    def hear(self, news: News | None) -> None:
        """Take in a worker's news."""
        if news is None:
            return
        run = self.runs[news.piece.label, news.piece.seed]
        if news.end:
            run.end = news.end
            return
        run.done, run.seconds, run.seen = news.round, run.seconds + news.seconds, run.seen + 1
        run.metrics |= news.metrics or {}

    def left(self, label: str | None = None) -> float:
        """Estimated seconds until an arm, or everything, is done; NaN while there is nothing to estimate from."""
        total = 0.0
        for (its, _), run in self.runs.items():
            if run.end or (label is not None and its != label):
                continue
            pace = self._pace([r for (other, _), r in self.runs.items() if other == its])
            total += (run.rounds - run.done) * (self._pace(list(self.runs.values())) if math.isnan(pace) else pace)
        return total / self.at_once

    @staticmethod
    def _pace(runs: Sequence[_Run]) -> float:
        seen = sum(run.seen for run in runs)
        return sum(run.seconds for run in runs) / seen if seen else math.nan

    def render(self) -> RenderableType:
        """Draw the table as it is now."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True, header_style="dim")
        table.add_column("method" if self.plan.kind == "compare" else "setting", overflow="fold", ratio=2)
        table.add_column("runs", justify="right")
        table.add_column("rounds", ratio=1, min_width=8)
        table.add_column(self.metric, justify="right", no_wrap=True)
        personal = any(f"personal_{self.metric}" in run.metrics for run in self.runs.values())
        if personal:
            table.add_column("personal", justify="right", no_wrap=True)
        table.add_column("spread", justify="right", no_wrap=True)
        table.add_column("left", justify="right", no_wrap=True)
        for arm in self.plan.arms:
            runs = [self.runs[arm.label, seed] for seed in self.plan.seeds]
            ended = sum(bool(run.end) for run in runs)
            mean, spread = _across(runs, self.metric)
            own, _ = _across(runs, f"personal_{self.metric}", f"own_{self.metric}")
            failed = any(run.end in ("failed", "diverged") for run in runs)
            table.add_row(
                Text(arm.label),
                f"{ended}/{len(runs)}",
                ProgressBar(sum(run.rounds for run in runs), sum(run.done for run in runs), finished_style="green"),
                Text("failed", style="red") if failed else number(mean, self.metric),
                *([number(own, self.metric)] if personal else []),
                number(spread, self.metric),
                "" if ended == len(runs) else clock(self.left(arm.label)),
            )
        ended = sum(bool(run.end) for run in self.runs.values())
        workers = "1 worker" if self.at_once == 1 else f"{self.at_once} workers"
        line = f"{self.plan.source}: {ended} of {len(self.runs)} runs done, {workers}"
        left = clock(self.left())
        return Group(table, Text(f"{line}, {left} left" if left else line, style="dim"))


def _across(runs: Sequence[_Run], *metrics: str) -> tuple[float, float]:
    """Mean and spread over the finished seeds only: unfinished ones would distort them.

    Of several metrics, the first that a run has counts.
    """
    found = [(run, [run.metrics[metric] for metric in metrics if metric in run.metrics]) for run in runs]
    done = [values[0] for run, values in found if values and run.end == "finished"]
    return across_seeds(done or [values[0] for _, values in found if values][:1])


@contextlib.contextmanager
def shown(board: Board) -> Iterator[Callable[[News | None], None]]:
    """Show the board on a terminal, and yield the function that takes news. If there is no terminal, only take news."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield board.hear
        return
    with Live(board.render(), console=console, transient=True, refresh_per_second=4) as live:

        def hear(news: News | None) -> None:
            board.hear(news)
            live.update(board.render())

        yield hear
