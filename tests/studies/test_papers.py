"""The studies of the four papers: every printed number is in them as printed, and every cell can be run."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import counterpoise as cp
from counterpoise.adversary import ADVERSARIES
from counterpoise.methods import METHODS
from counterpoise.runs.build import make
from counterpoise.runs.config import parse
from counterpoise.studies.plans import plan_of
from counterpoise.studies.reading import read_study
from counterpoise.studies.study import Study

PAPERS = Path(__file__).parents[2] / "studies" / "papers"
NAMES = ("fedbac", "feda4", "fedoaed", "feddua")


def study(name: str) -> Study:
    return read_study(PAPERS / f"{name}.toml")


# ---------------------------------------------------------------- what the papers print, row by row

# FedA4, table 1: CIFAR-10, CIFAR-100, Fashion-MNIST, STL-10 at Dirichlet 0.1 to 1.0, and the mean.
TABLE_1 = {
    "cifar10": """
        avg     73.98 83.63 84.37 84.57 85.36  82.38
        fedavg  74.45 82.78 84.50 85.19 85.67  82.52
        fedprox 70.86 81.10 83.59 83.97 85.30  80.96
        feda4   77.24 84.13 84.78 85.09 85.79  83.41
        gain    +2.79 +0.50 +0.28 -0.10 +0.12  +0.89""",
    "cifar100": """
        avg     49.18 52.66 53.91 54.10 55.25  53.02
        fedavg  49.50 52.19 53.93 53.97 54.94  52.91
        fedprox 51.60 55.73 57.11 57.97 58.89  56.26
        feda4   52.16 60.70 63.03 63.93 64.54  60.87
        gain    +0.56 +4.97 +5.92 +5.96 +5.65  +4.61""",
    "fmnist": """
        avg     88.72 93.38 93.74 93.33 93.81  92.60
        fedavg  88.72 93.34 93.71 93.39 93.94  92.62
        fedprox 89.11 92.99 93.34 93.28 94.21  92.59
        feda4   90.27 93.33 93.47 93.80 94.11  93.00
        gain    +1.16 -0.04 -0.27 +0.41 -0.10  +0.38""",
    "stl10": """
        avg     43.43 57.45 61.19 60.75 61.84  56.93
        fedavg  51.41 56.61 60.57 61.06 61.83  58.30
        fedprox 52.68 57.53 59.48 60.95 62.84  58.70
        feda4   56.32 59.16 63.02 63.32 64.65  61.29
        gain    +3.64 +1.63 +1.83 +2.13 +1.81  +2.59""",
}
SKEWS = ("0.1", "0.3", "0.5", "0.7", "1.0")

# FedA4, table 2: 5, 10 and 20 clients at Dirichlet 0.1, 0.3, 0.7 and 1.0, on CIFAR-10.
TABLE_2 = """
    avg     71.83 73.98 74.49  81.02 83.63 81.73  84.69 84.57 83.39  85.83 85.36 84.30
    fedavg  71.68 74.45 75.79  78.92 82.78 82.20  84.24 85.19 83.70  85.55 85.67 84.32
    fedprox 73.05 70.86 71.95  81.60 81.10 81.54  84.55 83.97 83.31  85.91 85.30 84.29
    feda4   74.11 77.24 75.86  81.95 84.13 81.45  85.25 85.09 83.77  86.18 85.79 84.58
    gain    +1.06 +2.79 +0.07  +0.35 +0.50 -0.75  +0.56 -0.10 +0.07  +0.27 +0.12 +0.27"""

# FedA4, table 3: without and with the weights and the trajectories, at Dirichlet 0.1 and 1.0, on CIFAR-10; the gains.
TABLE_3 = """
    fedavg             74.45       85.67
    weights_alone      74.65 +0.20 85.60 -0.07
    trajectories_alone 76.70 +2.25 85.75 +0.08
    feda4              77.24 +2.79 85.79 +0.12"""

# FedBaC, sections 5.1 (figure 3) and 5.4 (figure 6, times 100).
FEDBAC = {
    ("figure 3", "fedavg"): (86, None),
    ("figure 3", "no regulariser"): (88, None),
    ("figure 3", "fedbac"): (92, None),
    ("author's code", "fedavg"): (86, None),
    ("author's code", "no regulariser"): (88, None),
    ("author's code", "fedbac"): (92, None),
    ("figure 6", "fedbac"): (25, 40),
    ("figure 6, early", "fedbac"): (0, None),
}

# FedDua, section V-B: what a lie costs on CIFAR-10, in points. Abstract and section I: what FedDua gains.
DROPS = {"fedavg": 2.58, "fedprox": 3.79, "scaffold": 3.2, "ditto": 3.51}
GAIN = 3.17


def lines(text: str) -> dict[str, list[float]]:
    rows = (line.split() for line in text.strip().splitlines())
    return {name: [float(number) for number in numbers] for name, *numbers in rows}


def feda4_printed() -> Iterator[tuple[str, str, float]]:
    """Cell, row and number, of all three tables."""
    for name, text in TABLE_1.items():
        for label, numbers in lines(text).items():
            for column, number in zip(
                (*(f"{name} {skew}" for skew in SKEWS), f"{name}, average"), numbers, strict=True
            ):
                yield column, label, number
    columns = [
        f"cifar10 {skew}" if clients == 10 else f"{clients} clients {skew}"
        for skew in ("0.1", "0.3", "0.7", "1.0")
        for clients in (5, 10, 20)
    ]
    for label, numbers in lines(TABLE_2).items():
        for column, number in zip(columns, numbers, strict=True):
            yield column, label, number
    for label, numbers in lines(TABLE_3).items():
        for cell, number in zip(("cifar10 0.1", "cifar10 1.0"), numbers[:: len(numbers) // 2], strict=True):
            yield cell, label.replace("_", " "), number


def published(found: Study) -> dict[tuple[str, str], tuple[float, float | None]]:
    tables = [(cell.name, cell.published) for cell in found.cells] + [
        (one.name, one.published) for one in found.averages
    ]
    return {(name, label): (one.value, one.to) for name, table in tables for label, one in table.items()}


def test_every_accuracy_that_feda4_prints_is_in_its_study() -> None:
    printed: dict[tuple[str, str], tuple[float, None]] = {}
    for cell, label, number in feda4_printed():
        if label != "gain":
            assert printed.setdefault((cell, label), (number, None)) == (number, None), (
                "the tables print it twice, alike"
            )
    assert published(study("feda4")) == printed
    assert len(printed) == 4 * 4 * 6 + 4 * 8 + 4  # tables 1, 2 and 3, without what they repeat


def test_the_averages_of_feda4s_table_are_those_of_its_columns() -> None:
    for text in TABLE_1.values():
        for *columns, average in (row for label, row in lines(text).items() if label != "gain"):
            assert average == pytest.approx(np.mean(columns), abs=0.0051)


def leads(found: Study) -> dict[tuple[str, ...], set[tuple[str, str, float]]]:
    """The printed leads by cells: who is ahead of whom, and by how much."""
    some: dict[tuple[str, ...], set[tuple[str, str, float]]] = {}
    for one in found.claims:
        if one.by is not None:
            some.setdefault(one.cells, set()).add((one.better, one.than, one.by))
    return some


def test_every_gain_that_feda4_prints_is_a_claim_about_the_best_baseline() -> None:
    found = study("feda4")
    claims = leads(found)
    values = {key: value for key, (value, _) in published(found).items()}
    averages = {one.name: one.cells for one in found.averages}
    gains = {cell: number for cell, label, number in feda4_printed() if label == "gain"}
    assert len(gains) == 4 * 6 + 8
    odd = []
    for cell, gain in gains.items():
        best = max(("avg", "fedavg", "fedprox"), key=lambda label, cell=cell: values[cell, label])
        pair = ("feda4", best) if gain > 0 else (best, "feda4")
        assert (*pair, abs(gain)) in claims[averages.get(cell, (cell,))], cell
        if round(values[cell, "feda4"] - values[cell, best], 2) != gain:
            odd.append(cell)
    assert odd == ["fmnist 0.3", "stl10 0.7", "20 clients 1.0"]  # the study says so
    (none, *_), weights, trajectories, _ = lines(TABLE_3).values()
    assert none == 74.45
    for cell, place in (("cifar10 0.1", 1), ("cifar10 1.0", 3)):
        assert ("trajectories alone", "fedavg", trajectories[place]) in claims[cell,]
        pair = ("weights alone", "fedavg") if weights[place] > 0 else ("fedavg", "weights alone")
        assert (*pair, abs(weights[place])) in claims[cell,]


def test_every_number_that_fedbac_prints_is_in_its_study() -> None:
    assert published(study("fedbac")) == FEDBAC
    assert leads(study("fedbac"))["figure 3",] == {
        ("fedbac", "fedavg", 6),  # printed
        ("no regulariser", "fedavg", 2),  # 88 - 86
        ("fedbac", "no regulariser", 4),  # 92 - 88
    }


def test_every_number_that_feddua_prints_is_in_its_study() -> None:
    found = study("feddua")
    claims = leads(found)
    liars = ("one liar", "a liar each round")
    for name, drop in DROPS.items():
        assert claims.pop((f"cifar10 {name}",)) == {("all honest", liar, drop) for liar in liars}
    everywhere = tuple(f"{data} {name}" for data in ("cifar10", "organamnist", "pathmnist") for name in DROPS)
    gain = {(f"{liar}, FedDua", liar, GAIN) for liar in liars}
    assert claims == {everywhere: gain, everywhere[:8]: gain}
    assert published(found) == {}


def test_fedoaed_prints_no_number_and_claims_to_beat_all_in_four_settings() -> None:
    found = study("fedoaed")
    assert (published(found), leads(found)) == ({}, {})
    beaten = {(one.cells, one.than) for one in found.claims if one.better == "fedoaed" and not one.metric}
    settings = ("fmnist dirichlet", "fmnist lq2", "cifar10 dirichlet", "cifar10 lq2")
    baselines = ("fedavg", "fedprox", "scaffold", "fednova", "mifa", "fedvarp")
    assert beaten == {((setting,), baseline) for setting in settings for baseline in baselines}


# ---------------------------------------------------------------- can they be run?


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_a_configuration_that_can_be_made(name: str) -> None:
    found = study(name)
    for cell in found.cells:
        assert cell.seeds >= 5
        if cell.runs_of:
            continue
        plan = plan_of(cell)
        for arm in plan.arms:
            config = parse(next(plan.pieces(arm)).values, f"{cell.name}, {arm.label}")
            assert make(METHODS, config.method)
            assert all(make(ADVERSARIES, one) for one in config.plain().get("adversary", []))
            assert bool(cell.cannot) == (config.data.name in ("stl10", "pathmnist"))


@pytest.mark.parametrize("name", NAMES)
def test_each_paper_has_its_paragraphs(name: str) -> None:
    about = study(name).about.strip().split("\n\n")
    assert len(about) >= 3
    known = "What holds" if (PAPERS / f"{name}.json").exists() else "What is known without this study"
    assert any(part.startswith(known) for part in about)
    assert any(part.startswith("Why") for part in about)


TINY = {
    "fedbac": ["figure 3", "who is heard", "figure 4", "figure 4, loss", "figure 6"],
    "feda4": ["cifar10 0.1", "scaffold, early", "stl10 0.1"],
    "fedoaed": ["fmnist dirichlet, lr 0.01"],
    "feddua": ["pathmnist scaffold", "identity", "who is caught"],
}
"""Cells that are tried on made-up data; each has the methods and options of others like it."""


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise with labels in place of the data sets, large enough for the papers' partitions."""
    gray = ("mnist", "fashion-mnist")
    sizes = {"mnist": 1200, "fashion-mnist": 2000, "cifar10": 2000, "stl10": 60, "pathmnist": 1600}
    draw = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for name, size in sizes.items():
        shape = (28, 28) if name in gray else (3, 32, 32)
        np.savez(
            tmp_path / "data" / f"{name}.npz",
            x_train=draw.integers(0, 256, (size, *shape), dtype=np.uint8),
            y_train=np.arange(size) % 10,
            x_test=draw.integers(0, 256, (40, *shape), dtype=np.uint8),
            y_test=np.arange(40) % 10,
        )
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path / "data"))


@pytest.mark.usefixtures("made_up", "without_workers")
def test_cells_of_each_file_run_two_rounds(tmp_path: Path) -> None:
    cells = []
    for name, chosen in TINY.items():
        values = deepcopy(dict(study(name).values))
        cells += [_tiny(cell, name, values) for cell in values["cell"] if cell["name"] in chosen]
    assert len(cells) == sum(map(len, TINY.values()))
    values = {"title": "Tiny", "seeds": 1, "rounds": 2, "cell": cells}
    found = cp.study(values, tmp_path / "out", anyway=True, jobs=1)
    assert {row.cell.name for row in found.rows} == {cell["name"] for cell in cells}
    for row in found.rows:
        (outcome,) = row.outcomes.values()
        assert (outcome.status, outcome.why) == ("finished", ""), (row.cell.name, row.entry.label)
        early = row.cell.metric.measure.startswith("coupling")  # a client has no reliability after so few rounds
        assert early or outcome.curve, (row.cell.name, row.entry.label, row.cell.metric.measure)


def _tiny(cell: dict[str, Any], paper: str, values: dict[str, Any]) -> dict[str, Any]:
    """A cell under its paper's name, with little data, and without what was published for it."""
    own = {key: value for key, value in cell.items() if key not in ("published", "seeds", "rounds")}
    own["name"] = f"{paper} {cell['name']}"
    if "runs_of" in own:
        return own | {"runs_of": f"{paper} {own['runs_of']}"}
    few = {"feddua": {"data": {"proxy": 200}}, "feda4": {"data": {"samples": 40}, "model": {"name": "lenet5"}}}
    for table, settings in few.get(paper, {}).items():
        own["set"] = own.get("set", {}) | {table: own.get("set", {}).get(table, {}) | settings}
    return {"methods": values.get("methods")} | own
