"""What the README shows is what happens."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import counterpoise as cp
from counterpoise.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_its_python_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, names)
    assert names["run"].status == "finished"
    again = cp.simulate(names["method"], names["fed"], model=cp.models.mlp, rounds=1)
    assert again.method == "fedroot"


@pytest.mark.slow
def test_the_quick_start_ends_as_it_says(tmp_path, monkeypatch, capsys) -> None:
    """The accuracy to a point: other processors round otherwise."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["counterpoise", "run", "quickstart"])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    assert not end.value.code, err  # 143 where the suite itself was told to end: a run stops on a polite kill
    pattern = r"fedavg: accuracy ([\d.]+)%, loss [\d.]+ after 40 rounds in [\d.]+ s"
    shown, said = (re.search(pattern, text) for text in (out, README))
    assert shown, out
    assert said
    assert float(shown[1]) == pytest.approx(float(said[1]), abs=1.0)
