"""What the README shows is what happens."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

import counterpoise as cp
from counterpoise.adversary import ADVERSARIES
from counterpoise.cli import main
from counterpoise.methods import METHODS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_its_python_runs_and_says_what_it_shows(tmp_path, monkeypatch) -> None:
    """Accuracies to a point: other processors round otherwise."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, names)
    assert names["run"].status == "finished"
    pattern = r"^ *(fedavg|scaffold|counterpoise) +([\d.]+) ±"
    shown, said = (dict(re.findall(pattern, text, re.M)) for text in (README, str(names["found"])))
    assert len(shown) == 3
    assert {name: float(value) for name, value in said.items()} == pytest.approx(
        {name: float(value) for name, value in shown.items()}, abs=1.0
    )


def test_its_table_of_worlds_is_what_the_study_found() -> None:
    worlds = runpy.run_path(str(ROOT / "studies/worlds.py"))
    assert worlds["short"](worlds["found_in"](ROOT / "studies/worlds.toml").rows) in README, "run `make evidence`"


def test_it_counts_baselines_and_attacks_as_they_are() -> None:
    ours = {"counterpoise", "feda4", "fedbac", "fedbac-soft", "feddua", "fedoaed"}
    baselines = {entry.name for entry in METHODS if entry.group != "parts"} - ours
    page = (ROOT / "docs/methods/baselines.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in baselines)
    assert f"[{len(baselines)} baselines](docs/methods/baselines.md)" in README
    assert f"{len([*ADVERSARIES])} kinds of attacks and faults" in README


def test_it_is_short() -> None:
    assert len(README.splitlines()) < 150


@pytest.mark.slow
def test_the_quick_start_ends_as_it_says(tmp_path, monkeypatch, capsys) -> None:
    """The accuracy to a point: other processors round otherwise."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["counterpoise", "run", "quickstart"])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    assert not end.value.code, err  # 143 where the suite itself was told to end: a run stops on a polite kill
    pattern = r"fedavg: accuracy ([\d.]+) ?%, loss [\d.]+ after 40 rounds in [\d.]+ s"
    shown, said = (re.search(pattern, text) for text in (out, README))
    assert shown, out
    assert said
    assert float(shown[1]) == pytest.approx(float(said[1]), abs=1.0)


def test_the_optimiser_of_ones_own_is_lion() -> None:
    page = (ROOT / "docs" / "optimisers.md").read_text(encoding="utf-8")
    names: dict = {}
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(block, names)
    losses = [record.metrics["train_loss"] for record in names["run"].rounds]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
    optimizer, w = names["lion"](0.01), torch.tensor([1.0, -2.0])
    w, state = optimizer.step(w, torch.tensor([3.0, -5.0]), optimizer.init(w), torch.tensor(0.5))
    assert w.tolist() == pytest.approx([1 - 0.5 * (1 + 0.1), -2 + 0.5 * (1 + 0.2)])
    assert state["mean"].tolist() == pytest.approx([0.03, -0.05])


def test_the_page_on_models_runs() -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) >= 2
    for block in blocks:
        names.clear()
        exec(block, names)
        assert names["run"].status == "finished"
    assert {f"`{entry.name}`" for entry in cp.models.MODELS} <= {*re.findall(r"^\| (`[\w-]+`)", page, re.M)}
