"""`Comparison`: what `cp.compare` and `cp.sweep` return."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoise.comparisons.collection import Group, failures
from counterpoise.comparisons.plan import Plan
from counterpoise.comparisons.ranking import verdict
from counterpoise.comparisons.standing import Stand, stand_of
from counterpoise.comparisons.tables import (
    OWN_MODELS,
    as_latex,
    as_markdown,
    as_numbers,
    columns,
    on_clients,
    own_columns,
)
from counterpoise.measures import best_two, is_share, metric_words
from counterpoise.runs.frames import frame
from counterpoise.runs.saved import SavedRun
from counterpoise.sketch import card, dots, table
from counterpoise.texts import clean, counted, elided

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

__all__ = ["Comparison"]

_KINDS = {"compare": "Comparison", "sweep": "Sweep"}
_WIDTH = 80
_LABEL = 28
"""The most characters of a label in a text."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """Methods or settings over several seeds, side by side."""

    plan: Plan
    """What was compared with which seeds and settings."""
    groups: Sequence[Group]
    """Its runs, arm by arm."""
    folder: Path | None = None
    """Where the runs are kept; None if they are in memory alone."""
    metric: str = ""
    """What the runs are compared by; by default accuracy, or loss if there is none, without a test set on the clients' data."""
    others: int = 0
    """How many more runs the folder holds, of calls with other methods, settings or seeds."""

    @property
    def runs(self) -> dict[str, dict[int, SavedRun]]:
        """Every run by label and seed, with its rounds, status and measures."""
        return {group.label: {run.seed: run for run in group.runs} for group in self.groups}

    @cached_property
    def stand(self) -> Stand:
        """How the arms stand to each other, as the tables show it."""
        return stand_of(self.groups, self.plan.baseline, metric=self.metric)

    def by(self, metric: str) -> Comparison:
        """The same runs compared by another metric that they measured, such as ``"loss"`` or ``"personal_accuracy"``."""
        found = replace(self, metric=metric)
        found.stand  # noqa: B018 - says which metrics there are if this is none of them
        return found

    @property
    def best(self) -> str | None:
        """The label of the best mean over the seeds that all have; None if no run finished."""
        two = best_two(self.stand.rows, self.stand.lower)
        return None if two is None else two[0].label

    @property
    def verdict(self) -> list[str]:
        """Which arm is best, by how much, and whether that is more than noise, in sentences."""
        return verdict(self.stand)

    def frame(self, of: str = "rounds") -> pd.DataFrame:
        """All runs in one tidy pandas frame, as `Run.frame`; the column ``method`` holds the labels."""
        import pandas as pd

        frames = [
            frame(run.records, of, run.client_names, method=group.label, seed=run.seed)
            for group in self.groups
            for run in group.runs
        ]
        return pd.concat(frames, ignore_index=True) if frames else frame([], of, method="", seed=0)

    def table(self) -> pd.DataFrame:
        """A row for each arm: mean over seeds, spread, paired difference from the baseline with interval and p, costs.

        Accuracies are fractions, as in `frame`.
        """
        import pandas as pd

        return pd.DataFrame(as_numbers(self.stand, self.plan.arm_word)).set_index(self.plan.arm_word)

    def to_markdown(self) -> str:
        """The table in Markdown, as `counterpoise runs compare --format markdown`."""
        return as_markdown(self.stand)

    def to_latex(self) -> str:
        """The table in LaTeX with the package booktabs, as `counterpoise runs compare --format latex`."""
        return as_latex(self.stand)

    def plot(self, metric: str | None = None, against: str = "rounds") -> go.Figure:
        """A metric as a plotly figure in the report's colours: means over seeds, with bands of one deviation.

        Arguments as in `Run.plot`.
        """
        from counterpoise.runs.plots import plot_curves

        done = [(group.label, [run.records for run in _shown(group)]) for group in self.groups]
        return plot_curves(done, metric or self.metric or None, against)

    def __repr__(self) -> str:
        heads, rows = columns(self.stand)
        shown = _aligned([self.plan.arm_word, *heads[1:]], [[elided(row[0], _LABEL), *row[1:]] for row in rows])
        if self.stand.own:
            heads, own = own_columns(self.stand)
            shown += [OWN_MODELS, *_aligned([self.plan.arm_word, *heads[1:]], own)]
        told = [on_clients(self.stand.metric), *self._failures, *(self.verdict if len(rows) > 1 else [])]
        wrapped = [line for text in told for line in textwrap.wrap(text, _WIDTH, subsequent_indent="  ")]
        return clean("\n".join([self._title, *shown, *wrapped, *self._kept]))

    def _repr_html_(self) -> str:
        heads, rows = columns(self.stand)
        wide = heads.index("p") + 1
        ends = [(row.label, list(row.values.values())) for row in self.stand.rows]
        told = [(line,) for line in [*self._failures, *(self.verdict if len(rows) > 1 else [])]]
        told += [(line,) for line in self._kept]
        tables = [table([row[:wide] for row in rows], [self.plan.arm_word, *heads[1:wide]]), table(told)]
        return card(
            f"{self._title}: {metric_words(self.stand.metric)}",
            dots(ends, percent=is_share(self.stand.metric)),
            *tables,
        )

    @property
    def _title(self) -> str:
        arms, seeds, rounds = len(self.plan.arms), len(self.plan.seeds), self.plan.values["rounds"]
        counts = ((arms, self.plan.arm_word), (seeds, "seed"), (rounds, "round"))
        return f"{_KINDS[self.plan.kind]}: " + ", ".join(counted(n, word) for n, word in counts)

    @property
    def _kept(self) -> list[str]:
        beside = f" (beside {counted(self.others, 'run')} that this call did not ask for)" if self.others else ""
        return [f"kept in: {self.folder}{beside}"] if self.folder else []

    @property
    def _failures(self) -> list[str]:
        return failures({group.label: group.failure for group in self.groups if group.sentence})


def _shown(group: Group) -> Sequence[SavedRun]:
    """The finished runs; if there are none, those with at least one round."""
    return tuple(group.done.values()) or tuple(run for run in group.runs if run.records)


def _aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side, as many from the left as 80 characters have room for; a last line names the others."""
    table = [heads, *rows]
    wide = [max(len(row[place]) for row in table) for place in range(len(heads))]
    fits = max((n for n in range(1, len(wide) + 1) if sum(wide[:n]) + 2 * (n - 1) <= _WIDTH), default=1)
    lines = []
    for row in table:
        cells = [
            cell.ljust(size) if place == 0 else cell.rjust(size)
            for place, (cell, size) in enumerate(zip(row, wide, strict=True))
        ]
        lines.append("  ".join(cells[:fits]).rstrip())
    return [*lines, *([f"(too wide: {', '.join(heads[fits:])}; see table())"] if heads[fits:] else [])]
