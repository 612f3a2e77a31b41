"""The examples run, in seconds, and show what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

import counterpoise as cp
from counterpoise.runs.build import setup
from counterpoise.runs.config import override, parse, read
from counterpoise.runs.starting import run_setup

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_own_data_and_model(capsys) -> None:
    run = load("own_data_and_model").main(rounds=8)
    assert run.accuracy > 0.7
    assert "accuracy at the first hospital's patients to come: " in capsys.readouterr().out


def test_own_weighting_rule(capsys) -> None:
    module = load("own_weighting_rule")
    found = module.main(rounds=3, seeds=2)
    assert found["fedavg"] != found["fedagree"]
    assert "difference " in capsys.readouterr().out
    body = (EXAMPLES / "own_weighting_rule.py").read_text()
    rule = body[body.index("def by_agreement") : body.index("def main")].strip()
    assert len(rule.splitlines()) <= 20


def test_methods_are_compared(capsys) -> None:
    found = load("compare_methods").main(rounds=2, seeds=2)
    assert list(found.runs) == ["plain", "weak pull", "strong pull"]
    assert "Comparison: 3 methods, 2 seeds, 2 rounds" in capsys.readouterr().out


def test_spotting_a_liar(capsys) -> None:
    found = load("spotting_a_liar").main(rounds=12)
    assert found.caught == 1
    assert found.false_alarms < 0.1
    assert "they lied: " in capsys.readouterr().out


def test_hospitals_of_unequal_size() -> None:
    values, name = read(str(EXAMPLES / "hospitals.toml"))
    made = setup(parse(override(values, ["rounds=2"]), name))
    every, data = torch.arange(8), made.federation
    assert (data.train.sizes(every) + data.heldout.sizes(every)).tolist() == values["data"]["partition"]["sizes"]
    assert [record.liars for record in run_setup(made, None, None).rounds] == [(7,), (7,)]


def test_a_papers_table(capsys) -> None:
    few = ["data=digits", "rounds=1", "local.epochs=1", "model=mlp", "data.samples=300", "data.partition.clients=5"]
    table = load("paper_table").main("feda4/table-1-fmnist-small", *few)
    out = capsys.readouterr().out
    assert [len(row) for row in table] == [5, 5, 5, 5]
    assert "(88.72)" in out
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["avg", "fedavg", "fedprox", "feda4"]


def test_adapters_are_trained(capsys) -> None:
    assert load("fine_tune_lora").run.accuracy > 0.8
    assert "; 8,202 of 75,722 parameters are trained and sent" in capsys.readouterr().out


@pytest.mark.slow
def test_fedbacs_collapse(capsys) -> None:
    load("fedbac_collapse").main(rounds=10, seeds=1)
    assert len(capsys.readouterr().out.splitlines()) == 7


def test_arrays_are_brought(capsys) -> None:
    run = load("bring_arrays").main(rounds=10)
    assert run.accuracy > 0.9
    out = capsys.readouterr().out.split()
    assert (out[:3], out[4]) == (["name", "client_accuracy", "north"], "south")


def test_torch_data_sets_are_brought() -> None:
    unequal, dealt = load("bring_datasets").main(rounds=5)
    assert unequal.accuracy > 0.9
    assert len(dealt.rounds[0].cohort) == 8


def test_loaders_are_brought() -> None:
    run = load("bring_loaders").main(rounds=5)
    assert run.accuracy > 0.9
    assert run.client_names == ("tokyo", "lima")


def test_pictures_are_brought() -> None:
    pytest.importorskip("PIL")
    module = load("bring_pictures")
    assert module.federation.class_names == ("disc", "square")
    assert module.run.accuracy > 0.9


def test_a_csv_file_is_brought(capsys) -> None:
    module = load("bring_csv")
    assert module.federation.client_names == ("city", "coast")
    assert module.federation.class_names == ("ill", "well")
    assert module.run.accuracy > 0.9
    assert "coast" in capsys.readouterr().out


def test_parquet_files_are_brought() -> None:
    pytest.importorskip("pyarrow")
    run = load("bring_parquet").run
    assert run.client_names == ("berlin", "nairobi", "quito")
    assert run.accuracy > 0.9


def test_data_sets_of_hugging_face_are_brought() -> None:
    pytest.importorskip("datasets")
    module = load("bring_hugging_face")
    assert module.federation.class_names == ("dark top", "bright top")
    assert module.run.client_names == ("north", "south")
    assert module.run.accuracy > 0.6


def test_partitions_of_flwr_datasets_are_brought() -> None:
    pytest.importorskip("flwr_datasets")
    run = load("bring_flwr").run
    assert len(run.rounds[0].cohort) == 5
    assert run.accuracy > 0.9


def test_texts_are_brought() -> None:
    run = load("bring_texts").main(rounds=3)
    assert run.client_names == ("north", "south")
    assert run.accuracy > 0.1


def test_samples_in_parts_are_brought() -> None:
    module = load("bring_parts")
    assert module.federation.shape == {"facts": (1,), "picture": (1, 4, 4)}
    assert module.run.accuracy > 0.8


@pytest.mark.parametrize(
    "path", [*sorted(EXAMPLES.glob("bring_*.py")), EXAMPLES / "fine_tune_lora.py"], ids=lambda path: path.stem
)
def test_own_data_is_brought_in_a_few_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 25


def test_every_example_is_tested() -> None:
    text = Path(__file__).read_text()
    assert all(f'load("{path.stem}")' in text for path in EXAMPLES.glob("*.py"))


def test_own_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.own._folders", {})
    monkeypatch.setattr("counterpoise.own._tops", {})
    settings = ["rounds=2", "data.options.brightness=1"]
    values = override(read(str(EXAMPLES / "own_by_name" / "mine.toml"), settings)[0], settings)
    run = run_setup(setup(parse(values, "mine.toml")), out=tmp_path / "run")
    assert run.accuracy > 0.1
    assert run.settings["code"].keys() == {"my_project/rules.py"}
    assert run.settings["data"]["options"] == {"brightness": 1.0}
    assert cp.resume(tmp_path / "run", rounds=3, trust=EXAMPLES / "own_by_name").status == "finished"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_a_script_has_at_most_40_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 40
