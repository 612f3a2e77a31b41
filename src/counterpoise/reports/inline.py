"""`cp.report`: a report from Python, as a file or shown inline in a notebook."""

from __future__ import annotations

import datetime
import html
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from counterpoise.comparisons.collection import Group
from counterpoise.comparisons.comparison import Comparison
from counterpoise.errors import CounterpoiseError, brief, takes_only_its_options
from counterpoise.memory import bytes_in_words
from counterpoise.reports.report import page_path, render
from counterpoise.reports.study import Study, study
from counterpoise.runs.files import replace_text
from counterpoise.runs.run import Run
from counterpoise.runs.saved import SavedRun

__all__ = ["Report", "report"]

_PAGE = "report.html"


@dataclass(frozen=True)
class Report:
    """One HTML page about runs. A notebook shows it inline."""

    title: str
    page: str = field(repr=False)
    """The whole HTML file, which needs no network."""
    path: Path | None = None
    """Where it was written; None if it was not."""

    def save(self, path: str | Path) -> Path:
        """Write the page to a file."""
        place = page_path(Path(path))
        replace_text(place, self.page)
        return place

    def __repr__(self) -> str:
        where = "not kept: save(path) writes it" if self.path is None else str(self.path)
        return f"Report({self.title}, {bytes_in_words(len(self.page.encode()))}, {where})"

    def _repr_html_(self) -> str:
        style = "width:100%;height:720px;border:1px solid rgba(128,128,128,0.4);border-radius:6px"
        inner = html.escape(self.page)
        return f'<iframe srcdoc="{inner}" style="{style}" sandbox="allow-scripts allow-downloads"></iframe>'


@takes_only_its_options()
def report(
    of: Comparison | Run | SavedRun | str | Path | Iterable[str | Path],
    out: str | Path | None = None,
    *,
    metric: str = "",
) -> Report:
    """A report of a comparison, or of the runs in folders, as ``counterpoise report`` writes it.

    It is written to the file `out`: by default ``report.html`` in the folder, or in the current folder if several are
    given. The report of a comparison or a run that is kept in no folder is only written if you name a file. `metric` is
    the one by which methods are compared.
    """
    found, place = _found(of, metric)
    path = place if out is None else Path(out)
    made = Report(found.title, render(found), None if path is None else page_path(path))
    if made.path is not None:
        replace_text(made.path, made.page)
    return made


def _found(of: object, metric: str) -> tuple[Study, Path | None]:
    """What the report is about, and where it is written by default."""
    if isinstance(of, Comparison):
        folders, place = ((), None) if of.folder is None else ((of.folder,), of.folder / _PAGE)
        return Study(folders, tuple(of.groups), of.plan, metric or of.metric), place
    if isinstance(of, Run) and of.folder is None:
        now = datetime.datetime.now().astimezone()
        of = SavedRun(None, of.settings, tuple(of.rounds), of.status, "", now, why=of.why)
    if isinstance(of, SavedRun) and of.path is None:
        return Study((), (Group(of.method, (of,)),), None, metric), None
    kept = of.folder if isinstance(of, Run) else of.path if isinstance(of, SavedRun) else of
    places = [kept] if isinstance(kept, str | Path) else list(kept) if isinstance(kept, Iterable) else None
    if not places or not all(isinstance(one, str | Path) for one in places):
        raise CounterpoiseError(f"A report is about a comparison, a run or folders of runs, not {brief(of)}.")
    return study(places, metric), Path(places[0] if len(places) == 1 else ".") / _PAGE
