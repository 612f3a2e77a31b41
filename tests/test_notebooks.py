"""The notebooks run in a real kernel, and show tables, pictures and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

BOOKS = Path(__file__).parents[1] / "examples" / "notebooks"
FIGURE = "application/vnd.plotly.v1+json"


@pytest.fixture
def executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run a notebook in an empty folder. Returns what the last output of each cell is, by the cell's name and by type."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # other tests have the other cores

    def run(name: str) -> dict[str, dict[str, Any]]:
        book = nbformat.read(BOOKS / f"{name}.ipynb", as_version=4)
        nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
        assert not list(tmp_path.iterdir())
        cells = [cell for cell in book.cells if cell.cell_type == "code"]
        assert not [cell.id for cell in cells for output in cell.outputs if output.get("name") == "stderr"]
        return {cell.id: cell.outputs[-1]["data"] for cell in cells}

    return run


def names(figure: dict[str, Any]) -> set[str]:
    return {trace.get("name") for trace in figure["data"]}


@pytest.mark.slow
def test_from_data_to_a_report(executed) -> None:
    shown = executed("compare_methods")
    assert "<svg" in shown["dealing"]["text/html"]
    assert shown["holdings"][FIGURE]["data"]
    card = shown["comparing"]["text/html"]
    assert card.count("<table") == 2
    assert "best: " in card
    assert shown["table"]["text/html"].count("<tr") == 1 + 1 + 3  # the heads, the index's name, three methods
    assert names(shown["curves"][FIGURE]) >= {"fedavg", "fedprox", "scaffold"}
    assert shown["report"]["text/html"].startswith("<iframe srcdoc=")
    assert "fedavg, fedprox and scaffold on own data" in shown["report"]["text/html"]


@pytest.mark.slow
def test_a_method_of_ones_own(executed) -> None:
    shown = executed("own_method")
    assert "loss" in shown["term"]["text/html"]
    assert "leash" in shown["method"]["text/html"]
    run = shown["simulating"]["text/html"]
    assert "<svg" in run
    assert "<table" in run
    assert names(shown["curves"][FIGURE]) >= {"fedavg", "fedprox", "leashed"}
    table = shown["table"]["text/html"]
    assert "<th>leashed</th>" in table
    assert table.count("NaN") == 4  # of the baseline alone: the leashed model is another one


@pytest.mark.parametrize("path", sorted(BOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_valid_and_hold_no_outputs(path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    assert [cell.id for cell in book.cells if cell.get("outputs") or cell.get("execution_count")] == []
    assert f'executed("{path.stem}")' in Path(__file__).read_text()
