"""How a study's results stand beside what was published, computed from the study and its results alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from counterpoise.measures import across_seeds, student_factor
from counterpoise.studies.reading import Cell, Claim, Entry, Published, Study
from counterpoise.studies.results import Outcome, Results
from counterpoise.studies.verdicts import FEWEST, Claimed, Judged, claim, judge

__all__ = ["ClaimRow", "Row", "claim_rows", "doubts", "rows"]


@dataclass(frozen=True)
class Row:
    """A method in a cell."""

    cell: Cell
    entry: Entry
    outcomes: Mapping[int, Outcome]
    """The runs that have ended, by seed."""

    @property
    def published(self) -> Published | None:
        return self.cell.published.get(self.entry.label)

    @property
    def values(self) -> dict[int, float]:
        """The value of every finished run that has one, by seed."""
        found = {
            seed: self.cell.metric.value(one.curve) for seed, one in self.outcomes.items() if one.status == "finished"
        }
        return {seed: value for seed, value in found.items() if math.isfinite(value)}

    @property
    def collapsed(self) -> bool:
        """Whether a run diverged or failed, or has no finite value. Then there is no verdict."""
        return len(self.values) < len(self.outcomes)

    @property
    def lacking(self) -> int:
        """How many of the cell's seeds are still to run."""
        return max(self.cell.seeds - len(self.outcomes), 0)

    @property
    def mean(self) -> float:
        return across_seeds(list(self.values.values()))[0]

    @property
    def deviation(self) -> float:
        return across_seeds(list(self.values.values()))[1]

    @property
    def half(self) -> float:
        """How far the 95 % interval of our mean reaches either side."""
        count = len(self.values)
        return student_factor(count) * self.deviation / math.sqrt(count) if count > 1 else math.nan

    @property
    def judged(self) -> Judged | None:
        """Our values beside the published one, if there are both; only with a verdict if the rules give one here."""
        if self.published is None or not self.values:
            return None
        found = judge(list(self.values.values()), self.published.value, self.published.seeds)
        return found if self._silent == "" else found._replace(verdict="")

    @property
    def verdict(self) -> str:
        """The verdict, or in brackets why there is none; empty if nothing was published."""
        if self.cell.cannot:
            return "cannot be run"
        if self.judged is None:
            return f"({self._silent})" if self._silent else ""
        return self.judged.verdict or f"({self._silent})"

    @property
    def _silent(self) -> str:
        """Why there is no verdict; empty if there is one."""
        if self.lacking:
            return f"{self.lacking} of {self.cell.seeds} seeds to run"
        if self.collapsed:
            return "collapsed"
        if self.published is not None and not self.cell.metric.in_points:
            return "not in points"
        if self.published is not None and len(self.values) < FEWEST:
            return f"fewer than {FEWEST} seeds"
        return ""


@dataclass(frozen=True)
class ClaimRow:
    """A claim beside the rows of its two methods, in the order of its cells."""

    claim: Claim
    better: Sequence[Row]
    than: Sequence[Row]

    @property
    def found(self) -> Claimed | None:
        """The claim over the seeds that all its runs have; None if there is no such seed."""
        better, than = _averaged(self.better), _averaged(self.than)
        if not better.keys() & than.keys():
            return None
        lower = self.better[0].cell.metric.lower
        found = claim(than, better) if lower else claim(better, than)
        return found if self._silent == "" else found._replace(verdict="")

    @property
    def verdict(self) -> str:
        """The verdict, or in brackets why there is none."""
        if any(row.cell.cannot for row in self.better):
            return "cannot be run"
        return self.found.verdict if self.found is not None and self.found.verdict else f"({self._silent})"

    @property
    def _silent(self) -> str:
        every = [*self.better, *self.than]
        if any(row.lacking for row in every):
            return "seeds to run"
        if any(row.collapsed for row in every):
            return "collapsed"
        return f"fewer than {FEWEST} seeds" if min(len(row.values) for row in every) < FEWEST else ""


def _averaged(every: Sequence[Row]) -> dict[int, float]:
    """By seed, the mean over cells; only seeds that every cell has."""
    seeds = set.intersection(*(set(row.values) for row in every))
    return {seed: sum(row.values[seed] for row in every) / len(every) for seed in sorted(seeds)}


def rows(study: Study, results: Results) -> list[Row]:
    """Every method of every cell."""
    return [Row(cell, entry, _outcomes(results, cell, entry)) for cell in study.cells for entry in cell.entries]


def claim_rows(study: Study, results: Results) -> list[ClaimRow]:
    """Every claim."""
    by_name = {(row.cell.name, row.entry.label): row for row in rows(study, results)}
    return [
        ClaimRow(
            one,
            [by_name[cell, one.better] for cell in one.cells],
            [by_name[cell, one.than] for cell in one.cells],
        )
        for one in study.claims
    ]


def doubts(study: Study, before: Study) -> list[str]:
    """Which cells the study's file now defines otherwise than when the results were written, one sentence each."""
    then = {cell.name: cell for cell in before.cells}
    return [
        f"The cell {cell.name!r} has other settings now than its results. Run the study again."
        for cell in study.cells
        if cell.name in then and _definition(cell) != _definition(then[cell.name])
    ]


def _definition(cell: Cell) -> tuple[object, ...]:
    like = cell.like.rpartition("/")[2] if cell.like.endswith(".toml") else cell.like
    return like, cell.settings, cell.rounds, cell.metric.measure


def _outcomes(results: Results, cell: Cell, entry: Entry) -> Mapping[int, Outcome]:
    kept = results.get(cell.name)
    if kept is None or kept.measure != cell.metric.measure or entry.label not in kept.arms:
        return {}
    return kept.arms[entry.label].outcomes
