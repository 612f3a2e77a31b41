"""The pages of evidence are what the results say."""

from __future__ import annotations

import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def test_the_pages_of_evidence_are_what_the_results_say(tmp_path: Path) -> None:
    for script in ("evidence", "worlds"):
        subprocess.run([sys.executable, ROOT / f"studies/{script}.py", "--out", tmp_path], check=True)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.*")}
    there = {name: path.read_text() if (path := ROOT / "docs" / name).exists() else "" for name in made}
    assert there == made, "run `make evidence`"
    figures = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs/figures").glob("study-*.svg")}
    assert figures <= made.keys(), "the figures of studies that are gone"


def row(cell: str, label: str, *values: float, runs_of: str = "") -> Any:
    mean = sum(values) / len(values)
    found = dict(enumerate(values))
    return Namespace(cell=Namespace(name=cell, runs_of=runs_of), entry=Namespace(label=label), values=found, mean=mean)


def test_a_world_is_best_tied_or_behind_by_the_paired_difference_to_the_best_other() -> None:
    worlds = runpy.run_path(str(ROOT / "studies/worlds.py"))
    cells: dict[str, list[tuple[float, ...]]] = {
        "ahead": [(80, 81, 82, 83, 84), (81, 83, 82, 85, 84)],  # by 1, 2, 0, 2, 0
        "tied": [(80, 81, 82, 83, 84), (80.1, 80.6, 82, 82.9, 84.1)],  # by .1, -.4, 0, -.1, .1
        "behind": [(80, 81, 82, 83, 84), (79, 80.5, 81, 82.5, 83)],
        "few": [(80, 81), (90, 91)],
    }
    rows = [row(cell, "fedavg", *(v - 9 for v in best)) for cell, (best, _) in cells.items()]
    rows += [row(cell, "fedadam", *best) for cell, (best, _) in cells.items()]
    rows += [row(cell, "counterpoise", *ours) for cell, (_, ours) in cells.items()]
    rows += [row("ahead, honest left out", "counterpoise", 1, 1, runs_of="ahead"), row("without us", "fedavg", 1, 2)]
    found = {name: worlds["stands"](name, some) for name, some in worlds["by_cell"](rows).items()}
    assert [name for name, world in found.items() if world is None] == ["few", "without us"]
    assert {name: world.standing for name, world in found.items() if world} == {
        "ahead": "best",
        "tied": "tied",
        "behind": "behind",
    }
    ahead = found["ahead"]
    assert (ahead.usual, ahead.best, ahead.best_mean, ahead.ours) == (73, "fedadam", 82, 83)
    half = 2.7764451 * 1 / 5**0.5  # five differences of deviation 1
    assert (ahead.lead.difference, ahead.lead.low, ahead.lead.high) == pytest.approx((1, 1 - half, 1 + half))


@pytest.mark.parametrize(
    ("difference", "low", "high", "word"),
    [(0.0, -2, 2, "best"), (-0.1, -0.9, 0, "tied"), (-0.1, -1, 0.8, "behind"), (-0.1, -0.2, -0.01, "behind")],
)
def test_a_tie_holds_zero_and_lies_above_minus_one(difference: float, low: float, high: float, word: str) -> None:
    lead = Namespace(difference=difference, low=low, high=high)
    assert runpy.run_path(str(ROOT / "studies/worlds.py"))["standing"](lead) == word


def test_each_family_is_tuned_to_its_best_value_in_each_world() -> None:
    worlds = runpy.run_path(str(ROOT / "studies/worlds.py"))
    rows = [row("a", "fedadam(lr=0.1)", 80, 82), row("a", "fedadam(lr=0.3)", 70, 99), row("a", "feddyn(alpha=1)", 1)]
    made = tomllib.loads(worlds["tuned"]([*rows, row("b", "fedadam(lr=0.1)", 5)]))
    assert [(cell["name"], cell["like"], cell["methods"]) for cell in made["cell"]] == [
        ("a", "worlds/a", ["fedadam(lr=0.3)", "feddyn(alpha=1)"]),
        ("b", "worlds/b", ["fedadam(lr=0.1)"]),
    ]
    assert made["seeds"] == 5
