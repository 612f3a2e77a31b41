"""The results of a study while it runs: which pieces they lack, and the file that is kept up to date with them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from counterpoise.comparisons.conduct import News
from counterpoise.comparisons.plan import Arm, Piece, Plan
from counterpoise.errors import CounterpoiseError
from counterpoise.runs.saved import load_run, status_of
from counterpoise.studies.plans import arm_of, differing, placed
from counterpoise.studies.results import ENDED, KeptArm, KeptCell, Made, Outcome, Results, outcome_of, write_results
from counterpoise.studies.study import Cell, Study

__all__ = ["Ledger", "check_settings", "lasting"]

_SECONDS_BETWEEN_WRITES = 30.0


class _Place(NamedTuple):
    """Where the outcome of a piece belongs."""

    cell: Cell
    kept: Sequence[tuple[str, KeptArm]]
    """Each measure with the arm that keeps it: the cell's own, and one for every view that shows the method."""
    seed: int
    values: Mapping[str, Any]

    @property
    def done(self) -> bool:
        return all(lasting(arm.outcomes.get(self.seed)) for _, arm in self.kept)


class Ledger:
    """The results of a study, to which pieces are added as they end."""

    def __init__(self, study: Study, folder: Path, path: Path, results: Results, made: Made) -> None:
        self.results = results
        self._study, self._folder, self._path, self._made = study, folder, path, made
        self._places: dict[str, _Place] = {}
        self._written = time.monotonic()

    def lacking(self, cell: Cell, plan: Plan) -> bool:
        """Whether a piece of the cell has not ended, failed and may be tried again, or is missing in one of its views."""
        return any(
            not lasting(self._known(one, arm.label).get(seed))
            for arm in plan.arms
            for one in self._shown_in(cell, arm.label)
            for seed in plan.seeds
        )

    def _known(self, cell: Cell, label: str) -> Mapping[int, Outcome]:
        kept = self.results.get(cell.name)
        return kept.arms[label].outcomes if kept is not None and label in kept.arms else {}

    def _shown_in(self, cell: Cell, label: str) -> list[Cell]:
        """A cell and those views of it that show a method."""
        views = (one for one in self._study.cells if one.runs_of == cell.name)
        return [cell, *(one for one in views if any(entry.label == label for entry in one.entries))]

    def open_pieces(self, cell: Cell, plan: Plan, there: Plan, before: Made) -> Iterator[Piece]:
        """The pieces of a cell still to run. Those that have ended in the folder become results, run with `before`.

        `there` is the plan in the cell's folder, which may have more arms and seeds.
        """
        for arm in plan.arms:
            mine = [(one.metric.measure, self._arm(one, plan, arm)) for one in self._shown_in(cell, arm.label)]
            for piece in placed(cell, plan, _there(there, arm)):
                place = _Place(cell, mine, piece.seed, piece.values)
                if place.done:
                    continue
                self._places[piece.place] = place
                if status_of(self._folder / piece.place) in ("finished", "diverged"):
                    self._take(piece.place, before)
                else:
                    yield piece

    def _arm(self, cell: Cell, plan: Plan, arm: Arm) -> KeptArm:
        kept = self.results.setdefault(cell.name, KeptCell(plan.values, cell.metric.measure))
        return kept.arms.setdefault(arm.label, KeptArm(arm.settings))

    def cell_of(self, piece: Piece) -> str:
        """The name of the cell that a piece belongs to."""
        return self._places[piece.place].cell.name

    @property
    def still_open(self) -> int:
        """How many of the pieces to run have not ended, or failed."""
        return sum(not place.done for place in self._places.values())

    @property
    def paces(self) -> dict[str, float]:
        """By cell, the seconds that a round took in finished runs on a machine like this one."""
        found = {}
        for name, cell in self.results.items():
            outcomes = [one for arm in cell.arms.values() for one in arm.outcomes.values()]
            here = [
                one.seconds for one in outcomes if one.status == "finished" and one.made.machine == self._made.machine
            ]
            rounds = cell.config.get("rounds")
            if sum(here) and isinstance(rounds, int) and rounds > 0:  # earlier versions kept no seconds
                found[name] = sum(here) / (len(here) * rounds)
        return found

    def hear(self, news: News | None) -> None:
        """Take in a worker's news, and write the file from time to time."""
        if news is not None and news.end:
            self._take(news.piece.place, self._made, news.sentence)
        if time.monotonic() - self._written > _SECONDS_BETWEEN_WRITES:
            self.write()

    def write(self) -> None:
        """Write the file."""
        write_results(self._path, self._study, self.results)
        self._written = time.monotonic()

    def _take(self, place: str, made: Made, sentence: str = "") -> None:
        _, every, seed, values = self._places[place]
        kept = [(measure, arm) for measure, arm in every if not lasting(arm.outcomes.get(seed))]
        try:
            run = load_run(self._folder / place, values)
        except (CounterpoiseError, OSError) as error:  # it failed before it had a folder, or nobody can read it
            for _, arm in kept:
                arm.outcomes[seed] = Outcome(seed, "failed", [], made, sentence or str(error))
            return
        for measure, arm in kept:
            found = outcome_of(run, measure, made, seed)
            status = found.status if found.status in ENDED else "failed"
            why = "" if status == "finished" else found.why
            arm.outcomes[seed] = replace(found, status=status, why=why)


def lasting(outcome: Outcome | None) -> bool:
    """Whether a run need not be run again. One that diverged would diverge again; any other failure may be mended."""
    return outcome is not None and outcome.status in ("finished", "diverged")


def _there(plan: Plan, arm: Arm) -> Arm:
    found = arm_of(plan, arm.settings)
    assert found is not None, "a plan that was extended has all arms"
    return found


def check_settings(results: Results, plans: Iterable[tuple[Cell, Plan]], path: Path) -> None:
    """Refuse results of other settings than those that the study asks for now."""
    for cell, plan in plans:
        name, kept = cell.name, results.get(cell.name)
        if kept is None:
            continue
        advice = "Give the cell another name, or name another file with --results."
        if kept.measure != cell.metric.measure:
            raise CounterpoiseError(
                f"{path} has the {kept.measure} of the cell {name!r}, and the study asks for {cell.metric.measure}. {advice}"
            )
        for arm in plan.arms:
            if arm.label not in kept.arms:
                continue
            before = Plan("compare", "", "", plan.seeds, (), "", kept.config)
            piece = next(before.pieces(Arm(arm.label, arm.slug, kept.arms[arm.label].settings)))
            found = differing(piece.values, next(plan.pieces(arm)).values, f"{path}, cell {name!r}")
            if found is not None:
                key, was, now = found
                raise CounterpoiseError(
                    f"{path} has results of the cell {name!r}, {arm.label}, with other settings: {key} was {was!r} and is "
                    f"{now!r}. {advice}"
                )
