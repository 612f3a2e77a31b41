"""The tables of other projects: every value is in the studies as published, and every cell can be run."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import counterpoise as cp
from counterpoise.comparisons.plan import Piece
from counterpoise.federation import PARTITIONS
from counterpoise.local import Local
from counterpoise.methods import METHODS
from counterpoise.models import MODELS
from counterpoise.runs.build import make, setup
from counterpoise.runs.config import parse
from counterpoise.studies.plans import plan_of
from counterpoise.studies.reading import read_study
from counterpoise.studies.study import Study

EXTERNAL = Path(__file__).parents[2] / "studies" / "external"
NAMES = ("niid-bench", "adaptive", "fl-simulator", "nvflare", "fednova", "feddyn", "ditto")


def study(name: str) -> Study:
    return read_study(EXTERNAL / f"{name}.toml")


# ---------------------------------------------------------------- what the projects publish

# Flower's baseline of NIID-Bench: Dirichlet 0.5, two labels each, three labels each; FedAvg, SCAFFOLD, FedProx, FedNova.
FLOWER = {
    "mnist": "98.89 99.07 99.02 98.03  96.86 96.92 96.85 96.65  97.86 97.91 97.85 97.62",
    "fmnist": "88.09 88.44 88.15 88.22  78.10 33.80 78.05 71.67  82.43 80.32 82.99 81.97",
    "cifar10": "62.47 68.08 65.63 63.89  51.17 49.42 50.44 46.9  59.11 61.00 59.20 57.83",
}
FOUR = ("fedavg", "scaffold", "fedprox", "fednova")
MIXED = "scaffold, models by data"

# NIID-Bench: FedAvg, SCAFFOLD, FedProx, FedNova, and the strength of FedProx's pull.
NIID_BENCH = {
    "cifar10 dirichlet, NIID-Bench": ("68.2 69.8 67.9 66.8", "fedprox 0.001"),
    "cifar10 lq2, NIID-Bench": ("49.8 49.1 50.7 46.5", "fedprox"),
    "cifar10 noise": ("68.9 70.1 69.3 68.5", "fedprox"),
    "100 parties dirichlet": ("59.4 10.0 58.8 60.0", "fedprox 0.001"),
    "100 parties lq2": ("45.3 10.0 39.3 48.0", "fedprox 0.001"),
}
ADAPTIVE = ("fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad")


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split()]


def niid_bench() -> dict[tuple[str, str], float]:
    table = {}
    for data, text in FLOWER.items():
        values = numbers(text)
        for place, world in enumerate(("dirichlet", "lq2", "lq3")):
            for label, value in zip(FOUR, values[4 * place : 4 * place + 4], strict=True):
                table[f"{data} {world}", label] = value
    for cell, (text, fedprox) in NIID_BENCH.items():
        for label, value in zip(("fedavg", MIXED, fedprox, "fednova"), numbers(text), strict=True):
            table[cell, label] = value
    return table


PUBLISHED: dict[str, dict[tuple[str, str], Any]] = {
    "niid-bench": niid_bench(),
    "adaptive": {
        **{("cifar10", label): value for label, value in zip(ADAPTIVE, (72.8, 77.4, 77.4, 78.0), strict=False)},
        ("cifar10", "fedadagrad"): (72.1, 73.1),  # the paper's, and Flower's
        **{("cifar100", label): value for label, value in zip(ADAPTIVE, (44.7, 52.4, 52.5, 52.4, 47.9), strict=True)},
    },
    "fl-simulator": {
        (cell, label): value
        for cell, row in (("dirichlet 0.6", "80.65 82.56 83.53 84.22"), ("dirichlet 0.1", "77.31 77.58 79.92 78.96"))
        for label, value in zip(("fedavg", "fedadam", "scaffold", "feddyn"), numbers(row), strict=True)
    },
    "nvflare": {
        **{(f"dirichlet {skew}", "fedavg"): value for skew, value in (("1.0", 89.11), ("0.5", 87.87), ("0.3", 85.27))},
        ("dirichlet 0.1", "fedavg"): 80.45,
        ("dirichlet 0.1", "fedprox"): 80.59,
        ("dirichlet 0.1", "server momentum"): 80.58,
        ("dirichlet 0.1", "scaffold"): 82.60,
    },
    "fednova": {
        ("plain sgd", "fedavg"): 62.35,
        ("plain sgd", "fednova"): 67.04,
        ("plain sgd", "plain mean"): 67.04,
        ("momentum", "fedavg"): 70.78,
        ("momentum", "fednova"): 73.01,
        ("momentum", "plain mean"): 73.01,
    },
    "feddyn": {
        ("feddyn to 81.4", "feddyn"): (64, 67),
        ("feddyn to 85", "feddyn"): (185, 198),
        ("fedavg to 81.4", "fedavg"): (423, 491),
    },
    "ditto": {
        (cell, label): value
        for cell, value in (("fmnist", 97.47), ("cifar100", 52.87))
        for label in ("ditto", "ditto, pull 0.1")
    },
}


@pytest.mark.parametrize("name", NAMES)
def test_every_published_value_is_in_its_study(name: str) -> None:
    found = {
        (cell.name, label): one.value if one.to is None else (one.value, one.to)
        for cell in study(name).cells
        for label, one in cell.published.items()
    }
    assert found == PUBLISHED[name]


def test_flowers_deviations_of_fednova_are_those_of_its_intervals() -> None:
    """It prints 1.96 deviations over the square root of six."""
    half = {("plain sgd", "fedavg"): 1.33, ("plain sgd", "fednova"): 0.94, ("momentum", "fedavg"): 1.03}
    half["momentum", "fednova"] = 0.32
    cells = {cell.name: cell for cell in study("fednova").cells}
    for (cell, label), interval in half.items():
        assert cells[cell].published[label].spread == pytest.approx(interval * 6**0.5 / 1.96, abs=0.006)


SEEDS = {"niid-bench": 5, "adaptive": 3, "feddyn": 3} | dict.fromkeys(
    ("fl-simulator", "nvflare", "fednova", "ditto"), 1
)
FEWER = ("100 parties dirichlet", "100 parties lq2", "cifar100", "fedavg to 81.4")
"""Cells with one seed."""


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_a_configuration_that_can_be_made(name: str) -> None:
    for cell in study(name).cells:
        assert cell.seeds == (1 if cell.name in FEWER else SEEDS[name]), cell.name
        assert not cell.cannot
        if cell.runs_of:
            continue
        plan = plan_of(cell)
        for arm in plan.arms:
            config = parse(next(plan.pieces(arm)).values, f"{cell.name}, {arm.label}")
            assert make(METHODS, config.method)
            assert MODELS[config.model["name"]]
            assert make(PARTITIONS, config.data.partition).clients >= 8
            assert config.data.heldout == (0.25 if name == "ditto" else 0.0)
            word = cell.name.split()[0].replace("fmnist", "fashion-mnist")
            assert config.data.name == (word if "mnist" in word or "cifar" in word else "cifar10")
            assert config.evaluation.clients_every is not None, "evaluation is settled, so that runs train together"


# ---------------------------------------------------------------- settings


def local_of(name: str, cell: str, label: str) -> Local:
    return setup_of(name, cell, label).training.local


def setup_of(name: str, cell: str, label: str) -> Any:
    config = config_of(name, cell, label)
    return setup(config, federation=cp.load("digits", partition=cp.iid(clients=4)))


def config_of(name: str, cell: str, label: str) -> Any:
    plan = plan_of(next(one for one in study(name).cells if one.name == cell))
    piece: Piece = next(plan.pieces(next(arm for arm in plan.arms if arm.label == label)))
    return parse(piece.values, cell)


def test_rates_are_those_of_the_sources() -> None:
    rates = {
        ("adaptive", "cifar10"): (0.3162, 0.03162, 0.03162, 0.03162, 0.03162),
        ("adaptive", "cifar100"): (0.1, 0.03162, 0.03162, 0.03162, 0.1),
    }
    for (name, cell), values in rates.items():
        assert tuple(local_of(name, cell, label).optimizer.lr for label in ADAPTIVE) == values
    feddyn, fedavg = (local_of("fl-simulator", "dirichlet 0.6", label) for label in ("feddyn", "fedavg"))
    assert [one.lr(101) for one in (fedavg, feddyn)] == pytest.approx([0.1 * 0.998**100, 0.1 * 0.9995**100])
    nova = local_of("fednova", "momentum", "fednova")
    assert [nova.lr(round) for round in (49, 50, 51, 75, 76)] == pytest.approx([0.02, 0.002, 0.02, 0.0002, 0.02])
    flare = local_of("nvflare", "dirichlet 0.1", "scaffold")
    rates = [lr for round in range(1, 51) for lr in flare.rates(round)]  # type: ignore[union-attr]
    assert rates == pytest.approx([0.0005 + 0.0495 * (1 + np.cos(np.pi * epoch / 200)) / 2 for epoch in range(200)])
    assert flare.optimizer.keep
    assert local_of("feddyn", "fedavg to 81.4", "fedavg").clip == fedavg.clip == 10.0
    momentum = config_of("nvflare", "dirichlet 0.1", "server momentum").method
    assert momentum == {"name": "fedavgm", "beta": 0.6, "schedule": {"name": "cosine", "rounds": 50, "floor": 0.9}}


# ---------------------------------------------------------------- can they be run?

TINY = {
    "niid-bench": ("cifar10 noise", "mnist lq2"),
    "adaptive": ("cifar10", "cifar100"),
    "fl-simulator": ("dirichlet 0.1",),
    "nvflare": ("dirichlet 0.1",),
    "fednova": ("momentum",),
    "feddyn": ("feddyn to 81.4",),
    "ditto": ("fmnist",),
}
SMALL = {"name": "lenet5", "padding": 0}
FEW: dict[str, dict[str, Any]] = {
    "niid-bench": {"local": {"epochs": 1}},
    "adaptive": {"data": {"partition": {"clients": 20, "size": 10}}, "cohort": 2, "model": SMALL},
    "fl-simulator": {"data": {"partition": {"clients": 20, "size": 10}}, "local": {"epochs": 1}, "model": SMALL},
    "nvflare": {"local": {"epochs": 2}, "model": SMALL},
    "fednova": {"data": {"partition": {"clients": 4, "minimum": 1}}, "local": {"epochs": 1}, "model": SMALL},
    "feddyn": {"data": {"partition": {"clients": 10}}, "local": {"epochs": 1}},
    "ditto": {"data": {"partition": {"clients": 4, "minimum": 8}}, "evaluation": {"clients_every": 1}},
}
"""What makes a cell tiny: fewer clients, epochs and weights."""


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise with labels in place of the data sets."""
    draw = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for name, shape, classes in (
        ("mnist", (28, 28), 10),
        ("fashion-mnist", (28, 28), 10),
        ("cifar10", (3, 32, 32), 10),
        ("cifar100", (3, 32, 32), 100),
    ):
        np.savez(
            tmp_path / "data" / f"{name}.npz",
            x_train=draw.integers(0, 256, (300, *shape), dtype=np.uint8),
            y_train=np.arange(300) % classes,
            x_test=draw.integers(0, 256, (100, *shape), dtype=np.uint8),
            y_test=np.arange(100) % classes,
        )
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path / "data"))


@pytest.mark.usefixtures("made_up", "without_workers")
@pytest.mark.parametrize("name", NAMES)
def test_a_cell_of_each_file_runs_two_rounds(name: str, tmp_path: Path) -> None:
    values = deepcopy(dict(study(name).values))
    cells = [_tiny(cell, name, values) for cell in values["cell"] if cell["name"] in TINY[name]]
    assert len(cells) == len(TINY[name])
    shared = {key: values[key] for key in ("metric", "measure") if key in values}
    found = cp.study({"title": "Tiny", "seeds": 1, "rounds": 2, "cell": cells, **shared}, tmp_path / "out", jobs=1)
    for row in found.rows:
        (outcome,) = row.outcomes.values()
        assert (outcome.status, outcome.why) == ("finished", ""), (row.cell.name, row.entry.label)
        assert outcome.curve, (row.cell.name, row.entry.label, row.cell.metric.measure)


def _tiny(cell: dict[str, Any], name: str, values: dict[str, Any]) -> dict[str, Any]:
    """A cell with little data and few clients, and without what was published for it."""
    own = {key: value for key, value in cell.items() if key not in ("published", "seeds", "rounds", "published_seeds")}
    own["like"] = str(EXTERNAL / own["like"])
    own["set"] = _over(own.get("set", {}), FEW[name])
    return {"methods": values.get("methods")} | own


def _over(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Settings of both; where both name a table, it holds those of both."""
    both = {key: _over(one[key], other[key]) for key in one.keys() & other.keys() if isinstance(one[key], dict)}
    return one | other | both
