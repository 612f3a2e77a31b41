"""`cp.report`: the report of a comparison in memory, of kept runs, and inline in a notebook."""

from __future__ import annotations

from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import counterpoise as cp
from counterpoise.comparisons.collection import Group
from counterpoise.reports.chart import Chart, Table
from counterpoise.reports.report import sections
from counterpoise.reports.study import Study
from counterpoise.runs.saved import SavedRun

SETTINGS: dict[str, Any] = {"model": cp.models.linear, "rounds": 2}


def federation() -> cp.Federation:
    return cp.load("synthetic", partition=cp.iid(clients=4))


class Frame(HTMLParser):
    """The attributes of the one tag there is."""

    found: dict[str, str | None]

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag == "iframe"
        self.found = dict(attrs)


def test_a_comparison_in_memory_has_every_section_and_is_written_only_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = cp.compare(["fedavg", "fedprox"], federation(), seeds=2, **SETTINGS)
    made = cp.report(found)
    assert not list(tmp_path.iterdir())
    assert repr(made).startswith("Report(fedavg and fedprox on synthetic, ")
    assert repr(made).endswith(", not kept: save(path) writes it)")
    parts = {
        part.key: part
        for s in sections(Study((), found.groups, found.plan))
        for part in s.parts
        if hasattr(part, "key")
    }
    assert {"headline", "final", "curves"} <= parts.keys()
    assert isinstance(parts["curves"], Chart)
    assert isinstance(parts["headline"], Table)
    assert [row[0] for row in parts["headline"].rows] == ["fedavg", "fedprox"]
    frame = Frame()
    frame.feed(made._repr_html_())
    assert frame.found["srcdoc"] == made.page
    assert frame.found["sandbox"] == "allow-scripts allow-downloads"
    assert cp.report(found, "page.html").path == Path("page.html")
    assert made.save("again.html").read_text() == made.page


def test_a_title_says_that_the_data_is_ones_own() -> None:
    run = SavedRun(None, {"data": {"name": "own"}}, (), "finished", "", datetime.now(UTC))
    assert Study((), (Group("a", (run,)), Group("b", (run,))), None).title == "a and b on own data"


def test_a_run_in_memory_has_a_report(tmp_path: Path) -> None:
    run = cp.simulate("fedavg", federation(), **SETTINGS)
    assert cp.report(run).path is None
    made = cp.report(run, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == made.page
    assert f"{100 * run.last('accuracy'):.2f}" in made.page


def test_folders_have_the_command_lines_report(tmp_path: Path) -> None:
    run = cp.simulate("fedavg", federation(), out=tmp_path / "run", **SETTINGS)
    assert cp.report(run).path == tmp_path / "run" / "report.html"
    made = cp.report([tmp_path / "run"], tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == made.page
    assert "from runs kept on disk" in made.page


@pytest.mark.parametrize(
    ("of", "sentence"),
    [
        (3, "A report is about a comparison, a run or folders of runs, not 3."),
        ([], "A report is about a comparison, a run or folders of runs, not []."),
        ("nowhere", "There is no folder nowhere."),
    ],
)
def test_what_cannot_be_reported_is_one_sentence(of: Any, sentence: str) -> None:
    with pytest.raises(cp.CounterpoiseError) as told:
        cp.report(of)
    assert sentence in str(told.value)
