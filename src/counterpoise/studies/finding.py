"""What a study found, beside what was published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from counterpoise.errors import no_file
from counterpoise.studies.checking import check_cell
from counterpoise.studies.reading import chosen, read_study
from counterpoise.studies.results import Results, read_results
from counterpoise.studies.standing import ClaimRow, Row, claim_rows, doubts, rows
from counterpoise.studies.study import Study
from counterpoise.studies.tables import markdown

__all__ = ["Finding", "found_in"]


@dataclass(frozen=True)
class Finding:
    """A study and its results."""

    study: Study
    results: Results
    doubts: tuple[str, ...] = ()
    """One sentence for each cell whose results were made with other settings."""

    @cached_property
    def rows(self) -> list[Row]:
        """Every method of every cell and average, with its values and the verdict."""
        return rows(self.study, self.results)

    @cached_property
    def claims(self) -> list[ClaimRow]:
        """Every claim, with the verdict."""
        return claim_rows(self.study, self.results)

    def markdown(self, level: int = 2, figure: str = "", command: str = "") -> str:
        """A part of a page: the title as a heading of this level, the tables, and a figure's address if there is one."""
        return markdown(self.study, self.rows, self.claims, level, figure, command)


def found_in(path: Path, results: Path | None = None, cells: Sequence[str] = ()) -> Finding:
    """A study's file with the results kept beside it or in another file; or a file of results alone."""
    if path.suffix == ".json":
        study, found = read_results(path)
        return Finding(chosen(study, cells), found)
    study = chosen(read_study(path), cells)
    for cell in study.cells:
        if not cell.cannot:
            check_cell(cell)
    place = results or path.with_suffix(".json")
    if not place.exists():
        if results is not None:
            raise no_file(results)
        return Finding(study, {})
    before, found = read_results(place)
    return Finding(study, found, tuple(doubts(study, before)))
