"""Compare a study's results with what was published. This needs only the study and its results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from counterpoise.measures import across_seeds, last, student_factor
from counterpoise.studies.metric import parse_metric
from counterpoise.studies.results import Outcome, Results
from counterpoise.studies.study import Average, Cell, Claim, Entry, Published, Study
from counterpoise.studies.verdicts import FEWEST, Claimed, Judged, alike, claim, judge, judge_lead

__all__ = ["ClaimRow", "Row", "claim_rows", "doubts", "rows"]


@dataclass(frozen=True)
class Row:
    """A method in a cell, or on average over several."""

    cell: Cell
    entry: Entry
    outcomes: Mapping[int, Outcome]
    """The runs that have ended, by seed."""
    parts: Sequence[Row] = ()
    """For an average: the method's rows in its cells. It has no outcomes of its own."""

    @property
    def cannot(self) -> str:
        """Why it cannot be run; empty if it can, or if somebody ran it anyway."""
        if self.parts:
            return next((row.cannot for row in self.parts if row.cannot), "")
        return "" if self.outcomes else self.cell.cannot

    @property
    def published(self) -> Published | None:
        return self.cell.published.get(self.entry.label)

    @cached_property
    def values(self) -> dict[int, float]:
        """The value of every finished run that has one, by seed; of an average, the mean over its cells."""
        if self.parts:
            return _averaged(self.parts)
        found = {
            seed: self.cell.metric.value(one.curve) for seed, one in self.outcomes.items() if one.status == "finished"
        }
        return {seed: value for seed, value in found.items() if math.isfinite(value)}

    @property
    def collapsed(self) -> bool:
        """Whether a run diverged or failed, has no finite value, or alone ended at chance. Then there is no verdict."""
        return any(row.collapsed for row in self.parts) or len(self.values) < len(self.outcomes) or self._mixed

    @property
    def _mixed(self) -> bool:
        """Whether some runs ended at chance and others did not, so that neither their mean nor its interval says much."""
        metric = self.cell.metric
        if metric.measure != "accuracy":
            return False
        ends = [metric.scale * last(one.curve) for one in self.outcomes.values()]
        return 0 < sum(end < self.cell.chance for end in ends) < len(ends)

    @property
    def lacking(self) -> int:
        """How many of the cell's seeds are still to run."""
        return max((row.lacking for row in self.parts), default=max(self.cell.seeds - len(self.outcomes), 0))

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
        """Our values beside the published one, if there are both. The verdict is empty if `_silent` says why."""
        if self.published is None or not self.values:
            return None
        one = self.published
        found = judge(list(self.values.values()), one.value, one.seeds, one.to)
        return found if self._silent == "" else found._replace(verdict="")

    @property
    def verdict(self) -> str:
        """The verdict, or in brackets why there is none; empty if nothing was published."""
        if self.cannot:
            return "cannot be run"
        if self.judged is None:
            return f"({self._silent})" if self._silent else ""
        return self.judged.verdict or f"({self._silent})"

    @property
    def _silent(self) -> str:
        """Why there is no verdict; empty if there is one."""
        if self.lacking:
            return f"{self.lacking} of {self.cell.seeds} seeds to run"
        if self.published is not None and not self.cell.metric.in_points:
            return "not in points"
        if self.collapsed:
            return "collapsed"
        if self.published is not None and len(self.values) < FEWEST:
            return f"fewer than {FEWEST} seeds"
        return ""


@dataclass(frozen=True)
class ClaimRow:
    """A claim beside the rows of its two methods, in the order of its cells."""

    claim: Claim
    better: Sequence[Row]
    than: Sequence[Row]
    better_elsewhere: Sequence[Row] = ()
    than_elsewhere: Sequence[Row] = ()
    """The rows of the cells in which the lead is said to be smaller."""

    @cached_property
    def found(self) -> Claimed | None:
        """The claim over the seeds that all its runs have; None if there is no such seed."""
        better, than = self._sides(self.better, self.than)
        if self.claim.smaller_in:
            better, than = _lead(better, than), _lead(*self._sides(self.better_elsewhere, self.than_elsewhere))
        if not better.keys() & than.keys():
            return None
        within = self.claim.within
        found = claim(better, than) if within is None else alike(better, than, within)
        return found if self._silent == "" else found._replace(verdict="")

    def _sides(self, better: Sequence[Row], than: Sequence[Row]) -> tuple[dict[int, float], dict[int, float]]:
        """The values of both by seed, so that the higher is the better."""
        sign = -1.0 if better[0].cell.metric.lower else 1.0
        return {s: sign * v for s, v in _averaged(better).items()}, {s: sign * v for s, v in _averaged(than).items()}

    @property
    def verdict(self) -> str:
        """The verdict, or in brackets why there is none."""
        if any(row.cannot for row in self._every):
            return "cannot be run"
        return self.found.verdict if self.found is not None and self.found.verdict else f"({self._silent})"

    @property
    def judged(self) -> Judged | None:
        """Our lead beside the published one, if there are both and they are in points; without verdict if `_silent`."""
        found, by = self.found, self.claim.by
        if found is None or by is None or not self.better[0].cell.metric.in_points:
            return None
        judged = judge_lead(found.leads, by)
        return judged._replace(verdict="") if self._silent else judged

    @property
    def lead_verdict(self) -> str:
        """The verdict on the published lead; empty if there is none, in brackets if it cannot be held against ours."""
        if self.claim.by is None:
            return ""
        if any(row.cannot for row in self._every):
            return "cannot be run"
        return self.judged.verdict if self.judged and self.judged.verdict else f"({self._silent or 'not in points'})"

    @property
    def _every(self) -> list[Row]:
        return [*self.better, *self.than, *self.better_elsewhere, *self.than_elsewhere]

    @property
    def _silent(self) -> str:
        if any(row.lacking for row in self._every):
            return "seeds to run"
        if any(row.collapsed for row in self._every):
            return "collapsed"
        return f"fewer than {FEWEST} seeds" if min(len(row.values) for row in self._every) < FEWEST else ""


def _averaged(every: Sequence[Row]) -> dict[int, float]:
    """By seed, the mean over cells; only seeds that every cell has."""
    seeds = set.intersection(*(set(row.values) for row in every))
    return {seed: sum(row.values[seed] for row in every) / len(every) for seed in sorted(seeds)}


def _lead(better: Mapping[int, float], than: Mapping[int, float]) -> dict[int, float]:
    return {seed: better[seed] - than[seed] for seed in sorted(better.keys() & than.keys())}


def rows(study: Study, results: Results) -> list[Row]:
    """Every method of every cell. An average follows the last of its cells."""
    found: dict[str, list[Row]] = {}
    for cell in study.cells:
        found[cell.name] = [Row(cell, entry, _outcomes(results, cell, entry)) for entry in cell.entries]
    last = {one.name: max(one.cells, key=list(found).index) for one in study.averages}
    averages = {one.name: list(_average_rows(one, found)) for one in study.averages}
    return [
        row
        for name, some in found.items()
        for row in [*some, *(r for one, end in last.items() if end == name for r in averages[one])]
    ]


def _average_rows(average: Average, cells: Mapping[str, Sequence[Row]]) -> Iterator[Row]:
    """A row for each method that all cells of an average have."""
    first, *others = (cells[name] for name in average.cells)
    for row in first:
        same = [one for some in others for one in some if one.entry.label == row.entry.label]
        if len(same) == len(others):
            seeds = min(one.cell.seeds for one in (row, *same))
            cell = replace(row.cell, name=average.name, published=average.published, note=average.note, seeds=seeds)
            yield Row(cell, row.entry, {}, (row, *same))


def claim_rows(study: Study, results: Results) -> list[ClaimRow]:
    """Every claim."""
    by_name = {(row.cell.name, row.entry.label): row for row in rows(study, results)}

    def found(one: Claim, label: str, cells: Sequence[str]) -> list[Row]:
        some = [by_name[cell, label] for cell in cells]
        return [_by_metric(row, one.metric) for row in some] if one.metric else some

    return [
        ClaimRow(
            one,
            found(one, one.better, one.cells),
            found(one, one.than, one.than_cells),
            found(one, one.better, one.smaller_in),
            found(one, one.than, one.smaller_in),
        )
        for one in study.claims
    ]


def _by_metric(row: Row, metric: str) -> Row:
    return replace(row, cell=replace(row.cell, metric=parse_metric(metric, row.cell.metric.measure)))


def doubts(study: Study, before: Study) -> list[str]:
    """One sentence for each cell whose definition has changed since its results were written."""
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
