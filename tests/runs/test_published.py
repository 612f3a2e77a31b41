"""What the papers print of each experiment, read from them and not from the presets; the presets are held to it.

A setting that a paper leaves open has no line here.
"""

from __future__ import annotations

import pytest
from rich.console import Console

from counterpoise.adversary import ADVERSARIES
from counterpoise.cli.experiments import preset_blocks
from counterpoise.methods import METHODS
from counterpoise.registry import flatten
from counterpoise.runs.config import parse, preset_names, read

# The report, sections 4.1 to 4.6. Two of 300 shards of MNIST's 60,000 are 400 images, all of which a client trains on.
FEDBAC = {
    "rounds": 200,
    "cohort": 10,
    "data.name": "mnist",
    "data.partition": {"name": "shards", "clients": 20, "per_client": 2, "total": 300},
    "data.heldout": 0,
    "model.name": "light-cnn",
    "method.name": "fedbac",
    "method.beta": 0.9,
    "method.gamma": 1,
    "method.strength": 1e-6,
    "method.alpha": 1,
    "method.window": 5,
    "method.eta": 1,
    "method.score": "clip",
    "method.reliability": "stability",
    "local.epochs": 1,
    "local.batch": 64,
    "local.optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
}
COUPLED = {key: value for key, value in FEDBAC.items() if key != "data.heldout"} | {"evaluation.clients_every": 1}
# The author's public code, where it differs.
AUTHOR = FEDBAC | {
    "data.heldout": 0.2,
    "method.score": "author",
    "method.align": "gradient",
    "local.optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.5},
    "evaluation.every": 1,
    "evaluation.clients_every": 1,
}

# Section 5.1 and table 1 of the appendix; rounds are not printed.
FEDOAED = {
    "cohort": 5,
    "method.name": "fedoaed",
    "local.batch": 20,
    "local.optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
}
FMNIST = FEDOAED | {"data.name": "fashion-mnist", "model.name": "lenet5", "local.epochs": 3}
CIFAR = FEDOAED | {"data.name": "cifar10", "model.name": "resnet18", "local.epochs": 5}

# Section V-A and figure 4; rounds, epochs, batch and rate are not printed.
FEDDUA = {
    "cohort": 10,
    "data.partition": {"name": "dirichlet", "alpha": 0.5, "clients": 100},
    "method.name": "feddua:fedavg",
    "method.paper": True,
    "adversary.name": "claims",
    "adversary.factor": 3,
    "adversary.clients": 1,
}
LIE = {"cohort": 10, "data.name": "cifar10", "data.partition.clients": 100, "method.name": "fedavg"}
EACH_ROUND = {"adversary.clients": 0, "adversary.a_round": 1}

# Section 4.1.
FEDA4 = {
    "rounds": 50,
    "cohort": None,
    "data.partition.name": "dirichlet",
    "data.partition.clients": 10,
    "data.heldout": 0,
    "data.probe": 1,
    "model.name": "cnn6",
    "method.name": "feda4",
    "method.beta": 1,
    "method.eta": 0.01,
    "method.theta": 0.9,
    "method.tau_conc": 0.3,
    "method.tau_sim": 0.2,
    "local.epochs": 3,
    "local.batch": 64,
    "local.optimizer": {"name": "adam", "lr": 0.001},
}


def dirichlet(clients):
    return {"data.partition": {"name": "dirichlet", "alpha": 0.5, "clients": clients}}


def labels(clients):
    return {"data.partition": {"name": "lq", "labels": 2, "clients": clients}}


SETUPS = {
    "fedbac/figure-3": FEDBAC,
    "fedbac/figure-4": FEDBAC,
    "fedbac/figure-5": FEDBAC | {"evaluation.every": 1},
    "fedbac/figure-6": COUPLED,
    "fedbac/author-code": AUTHOR,
    "fedoaed/figure-1-fmnist-dirichlet": FMNIST | dirichlet(500),
    "fedoaed/figure-1-fmnist-lq2": FMNIST | labels(500),
    "fedoaed/figure-1-cifar10-dirichlet": CIFAR | dirichlet(250),
    "fedoaed/figure-1-cifar10-lq2": CIFAR | labels(250),
    "feddua/figure-1": LIE | {"adversary.name": "claims", "adversary.clients": 1},
    "feddua/figure-1-each-round": LIE | {"adversary.name": "claims"} | EACH_ROUND,
    "feddua/figure-3": {"method.name": "feddua:fedavg", "method.paper": True},
    "feddua/figure-4-cifar10": FEDDUA | {"data.name": "cifar10"},
    "feddua/figure-4-cifar10-each-round": FEDDUA | EACH_ROUND | {"data.name": "cifar10"},
    "feddua/figure-4-pathmnist": FEDDUA | {"data.name": "pathmnist"},
    "feddua/figure-4-pathmnist-each-round": FEDDUA | EACH_ROUND | {"data.name": "pathmnist"},
    "feddua/figure-4-organamnist": FEDDUA | {"data.name": "organamnist"},
    "feddua/figure-4-organamnist-each-round": FEDDUA | EACH_ROUND | {"data.name": "organamnist"},
    "feda4/table-1-fmnist": FEDA4 | {"data.name": "fashion-mnist"},
    "feda4/table-1-cifar10": FEDA4 | {"data.name": "cifar10"},
    "feda4/table-1-cifar100": FEDA4 | {"data.name": "cifar100"},
    "feda4/table-1-stl10": FEDA4 | {"data.name": "stl10"},
    "feda4/table-2": FEDA4 | {"data.name": "cifar10"},
    "feda4/table-3": FEDA4 | {"data.name": "cifar10"},
    "feda4/figure-5-cnn3": FEDA4 | {"data.name": "cifar100", "model.name": "cnn3"},
    "feda4/figure-5-resnet18": FEDA4 | {"data.name": "cifar100", "model.name": "resnet18"},
}

AROUND = ["fedavg", "fedprox", "scaffold", "ditto"]
METHODS_OF = {
    "fedbac/figure-3": ["fedavg", "fedbac strength=0.0", "fedbac"],
    "fedbac/figure-4": ["fedbac"],
    "fedbac/figure-5": ["fedbac strength=0.0", "fedbac"],
    "fedbac/figure-6": ["fedbac"],
    "fedbac/author-code": ["fedavg", "fedbac strength=0.0", "fedbac"],
    "fedoaed/": ["fedavg", "fedprox", "scaffold", "fednova", "mifa", "fedvarp", "fedoaed"],
    "feddua/figure-1": ["fedavg"],
    "feddua/figure-4": [*AROUND, *(f"feddua:{name}" for name in AROUND)],
    "feda4/table-1": ["avg", "fedavg", "fedprox", "feda4"],
    "feda4/table-2": ["avg", "fedavg", "fedprox", "feda4"],
    "feda4/table-3": ["feda4 modules=none", "feda4 modules=weights", "feda4 modules=trajectory", "feda4"],
    "feda4/figure-5": ["avg", "fedavg", "fedprox", "feda4"],
}
"""Who is compared, with the option that an ablation turns; a preset's name begins so."""

ALPHA, CLIENTS, FACTOR = "data.partition.alpha", "data.partition.clients", "adversary.factor"
VARIED = {
    "feddua/figure-1": {FACTOR: [1, 3], ALPHA: [0.1, 0.5]},
    "feddua/figure-4": {FACTOR: [1, 3]},
    "feda4/table-1": {ALPHA: [0.1, 0.3, 0.5, 0.7, 1.0]},
    "feda4/table-2": {ALPHA: [0.1, 0.3, 0.7, 1.0], CLIENTS: [5, 10, 20]},
    "feda4/table-3": {ALPHA: [0.1, 1.0]},
    "feda4/figure-5": {ALPHA: [0.1, 0.5, 1.0]},
}

NUMBERS = {
    # Section 5.1.
    "fedbac/figure-3": "86 | 88 | 92",
    # Table 1, without its column of means.
    "feda4/table-1-cifar10": """
        73.98 83.63 84.37 84.57 85.36
        74.45 82.78 84.50 85.19 85.67
        70.86 81.10 83.59 83.97 85.30
        77.24 84.13 84.78 85.09 85.79""",
    "feda4/table-1-cifar100": """
        49.18 52.66 53.91 54.10 55.25
        49.50 52.19 53.93 53.97 54.94
        51.60 55.73 57.11 57.97 58.89
        52.16 60.70 63.03 63.93 64.54""",
    "feda4/table-1-fmnist": """
        88.72 93.38 93.74 93.33 93.81
        88.72 93.34 93.71 93.39 93.94
        89.11 92.99 93.34 93.28 94.21
        90.27 93.33 93.47 93.80 94.11""",
    "feda4/table-1-stl10": """
        43.43 57.45 61.19 60.75 61.84
        51.41 56.61 60.57 61.06 61.83
        52.68 57.53 59.48 60.95 62.84
        56.32 59.16 63.02 63.32 64.65""",
    "feda4/table-2": """
        71.83 73.98 74.49  81.02 83.63 81.73  84.69 84.57 83.39  85.83 85.36 84.30
        71.68 74.45 75.79  78.92 82.78 82.20  84.24 85.19 83.70  85.55 85.67 84.32
        73.05 70.86 71.95  81.60 81.10 81.54  84.55 83.97 83.31  85.91 85.30 84.29
        74.11 77.24 75.86  81.95 84.13 81.45  85.25 85.09 83.77  86.18 85.79 84.58""",
    "feda4/table-3": "74.45 85.67 | 74.65 85.60 | 76.70 85.75 | 77.24 85.79",
}
"""A row for each method. Figures without numbers in their paper have none here."""


def config(name):
    return parse(read(name)[0], name)


def resolved(name):
    """Every setting, with dots into tables, those included that the method's and the adversary's defaults decide."""
    plain = config(name).plain()
    (adversary,) = plain.pop("adversary", [{}])
    found = flatten(plain) | {f"adversary.{key}": value for key, value in adversary.items()}
    for table, registry in (("method", METHODS), ("adversary", ADVERSARIES)):
        if f"{table}.name" in found:
            for option in registry[found[f"{table}.name"]].parameters.values():
                found.setdefault(f"{table}.{option.name}", option.default)
    return found


def of(table, name):
    """The entry of a table that is for this preset, or for all whose names begin like it."""
    return next((value for key, value in table.items() if name.startswith(key)), None)


def rows(text):
    return [line.split() for line in text.replace("|", "\n").splitlines() if line.strip()]


def test_every_preset_of_a_paper_is_held_to_it():
    ours = ("worlds/", "shakespeare/")  # nobody's print
    printed = {name for name in preset_names() if not name.endswith("-small") and not name.startswith(ours)}
    assert printed - {"quickstart", "demo"} == SETUPS.keys()


@pytest.mark.parametrize("name", SETUPS)
def test_a_preset_is_set_up_as_printed(name):
    found = resolved(name)
    for key, value in SETUPS[name].items():
        inside = {k.removeprefix(f"{key}."): v for k, v in found.items() if k.startswith(f"{key}.")}
        assert (inside or found.get(key)) == value, key
    assert found.get("data.samples") is None
    assert found.get("local.steps") is None


@pytest.mark.parametrize("name", SETUPS)
def test_a_preset_compares_and_varies_what_its_paper_does(name):
    paper = config(name).paper
    ablated = ("strength", "modules")
    named = [
        " ".join([m["name"], *(f"{key}={value}" for key, value in m.items() if key in ablated)]) for m in paper.methods
    ]
    expected = of(METHODS_OF, name)
    assert expected is None or named == expected
    varied = of(VARIED, name)
    assert varied is None or (paper.vary, list(paper.vary)) == (varied, list(varied))


@pytest.mark.parametrize("name", SETUPS)
def test_published_numbers_are_those_of_the_paper_and_listed_as_printed(name, capsys):
    own = "fedbac/figure-3" if name == "fedbac/author-code" else name
    printed = rows(NUMBERS.get(own, ""))
    assert config(name).paper.numbers == [[float(number) for number in row] for row in printed]
    for block in preset_blocks([name]):
        Console(width=200).print(block)
    words = capsys.readouterr().out.split()
    for number in {number for row in printed for number in row}:
        assert number in words
