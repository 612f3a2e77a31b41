"""A run that is asked for again: returned, continued, refused or replaced."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import counterpoise as cp
from counterpoise.runs.folder import Folder
from counterpoise.runs.index import fingerprint
from counterpoise.runs.origin import begun_in
from counterpoise.texts import parse_toml

SETTINGS: dict[str, Any] = {"model": cp.models.linear, "rounds": 4, "cohort": 3, "seed": 1}


def federation(alpha: float = 0.5) -> cp.Federation:
    return cp.load("digits", partition=cp.dirichlet(alpha, clients=6), samples=300)


def weights(run: cp.Run) -> Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


def again(out: Path, **changes: Any) -> tuple[cp.Run, list[int]]:
    """The run of the same call, with changes, and the rounds that it ran."""
    ran: list[int] = []
    settings = {"method": "fedprox", "federation": federation(), **SETTINGS, **changes}
    run = cp.simulate(
        settings.pop("method"),
        settings.pop("federation"),
        out=out,
        on_round=lambda record: ran.append(record.round),
        **settings,
    )
    return run, ran


def test_a_finished_run_is_returned_as_it_was(tmp_path: Path) -> None:
    first, ran = again(tmp_path / "run")
    assert ran == [1, 2, 3, 4]
    second, ran = again(tmp_path / "run")
    assert ran == []
    assert second.status == "finished"
    assert torch.equal(weights(first), weights(second))
    assert [r.metrics for r in second.rounds] == [r.metrics for r in first.rounds]


def test_a_finished_run_is_not_logged_again(tmp_path: Path) -> None:
    heard: list[str] = []
    log = cp.logs.Logger(lambda start: heard.append("begin"), lambda record: None, heard.append)
    again(tmp_path / "run", log=log)
    again(tmp_path / "run", log=log)
    assert heard == ["begin", "finished"]


def test_an_unfinished_run_goes_on_to_the_same_end(tmp_path: Path) -> None:
    whole, _ = again(tmp_path / "whole")
    cp.simulate("fedprox", federation(), out=tmp_path / "run", on_round=lambda r: r.round == 2, **SETTINGS)
    run, ran = again(tmp_path / "run")
    assert ran == [3, 4]
    assert torch.equal(weights(run), weights(whole))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"method": cp.methods.fedprox(mu=0.5)}, r"method\.mu was 0\.01 and is 0\.5\. Choose"),
        ({"seed": 2, "cohort": 2}, r"cohort was 3 and is 2, seed was 1 and is 2\. Choose"),
        ({"rounds": 9}, r"rounds was 4 and is 9\. For more rounds, use cp\.resume\('.*run', rounds=9\)\. Choose"),
        ({"rounds": 3}, r"rounds was 4 and is 3\. Choose"),
        ({"local": cp.Local(batch=8)}, r"local\.batch was 32 and is 8\. Choose"),
        ({"federation": federation(0.1)}, r"data\.partition\.alpha was 0\.5 and is 0\.1\. Choose"),
        ({"engine": cp.Engine(dtype="float64")}, r"engine\.dtype was 'float32' and is 'float64'\. Choose"),
        (
            {"loss": lambda outputs, targets: (outputs**2).mean(1)},
            r"own\.loss was not set and is '.*<lambda>'\. Choose",
        ),
    ],
)
def test_another_configuration_is_refused_with_what_differs(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    before, _ = again(tmp_path / "run")
    with pytest.raises(cp.CounterpoiseError, match=f"run holds a run with another configuration: {sentence}"):
        again(tmp_path / "run", **changes)
    assert torch.equal(weights(again(tmp_path / "run")[0]), weights(before))


def test_of_many_differences_some_are_told(tmp_path: Path) -> None:
    again(tmp_path / "run")
    local = cp.Local(epochs=2, batch=8, optimizer=cp.adam(0.01))
    with pytest.raises(cp.CounterpoiseError, match=r"cohort was 3.* and [4-9] more\. Choose another folder"):
        again(tmp_path / "run", seed=2, cohort=2, local=local, evaluation=cp.Evaluation(every=2))


def test_the_choices_of_another_machine_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads and chunk follow from the machine, so the user did not ask for others."""
    again(tmp_path / "run")
    monkeypatch.setattr("counterpoise.engine.backends.settings._cores", lambda: 37)
    assert again(tmp_path / "run")[1] == []
    with pytest.raises(cp.CounterpoiseError, match=r"engine\.threads was \d+ and is 3\."):
        again(tmp_path / "run", engine=cp.Engine(threads=3))


def test_data_of_ones_own_are_compared_by_their_fingerprint(tmp_path: Path) -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    own = [cp.Federation.from_arrays(x + more, y, partition=cp.iid(6)) for more in (0.0, 0.0, 1.0)]
    again(tmp_path / "run", federation=own[0])
    assert again(tmp_path / "run", federation=own[1])[1] == []
    with pytest.raises(cp.CounterpoiseError, match="another configuration: the federation holds other samples, has"):
        again(tmp_path / "run", federation=own[2])


def test_a_module_that_is_made_anew_begins_with_other_weights_and_a_function_does_not(tmp_path: Path) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    again(tmp_path / "module", model=net())
    with pytest.raises(cp.CounterpoiseError, match=r"the model begins with other weights \(if it is made anew"):
        again(tmp_path / "module", model=net())
    again(tmp_path / "factory", model=net)
    assert again(tmp_path / "factory", model=net)[1] == []


def cell(source: str, **given: Any) -> dict[str, Any]:
    """The names that a notebook's cell defines."""
    names: dict[str, Any] = {"__name__": "__main__", "torch": torch, "nn": nn, "cp": cp, **given}
    exec(source, names)
    return names


LOSS = """
def loss(outputs, targets):
    return FACTOR * nn.functional.cross_entropy(outputs, targets, reduction="none")
"""
TERM = """
def method(mu):
    def pull(client, step, w):
        return mu * w.square().sum()
    return cp.methods.fedavg().adding("mine", local=cp.Part("pull", loss=pull))
"""
NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        return self.layer(x.flatten(1))
"""


@pytest.mark.parametrize(
    ("argument", "first", "same", "other", "told"),
    [
        ("loss", cell(LOSS, FACTOR=2)["loss"], cell(f"# more\n{LOSS}", FACTOR=2)["loss"],
         cell(LOSS.replace("FACTOR *", "FACTOR +"), FACTOR=2)["loss"], "the code of your own loss has changed"),
        ("loss", cell(LOSS, FACTOR=2)["loss"], cell(LOSS, FACTOR=2)["loss"], cell(LOSS, FACTOR=3)["loss"],
         "a value that your own loss holds or uses has changed"),
        ("method", cell(TERM)["method"](0.1), cell(TERM)["method"](0.1), cell(TERM)["method"](0.2),
         "a value that your own method holds or uses has changed"),
        ("model", cell(NET)["Net"], cell(NET)["Net"], cell(NET.replace("x.flatten(1)", "-x.flatten(1)"))["Net"],
         "the code of your own model has changed"),
    ],
)  # fmt: skip
def test_code_of_ones_own_that_changed_is_refused(
    argument: str, first: Any, same: Any, other: Any, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, _ = again(tmp_path / "run", rounds=1, **{argument: first})
    assert again(tmp_path / "run", rounds=1, **{argument: same})[1] == []
    with pytest.raises(cp.CounterpoiseError, match=f"another configuration: {told}.*overwrite=True"):
        again(tmp_path / "run", rounds=1, **{argument: other})
    with pytest.raises(cp.CounterpoiseError, match=f"T?{told[1:]} since this run began"):
        cp.resume(tmp_path / "run", rounds=2, **{argument: other})
    run, ran = again(tmp_path / "run", rounds=1, overwrite=True, **{argument: other})
    assert ran == [1]
    assert not torch.equal(weights(run), weights(before))
    assert not caplog.messages


def test_code_that_another_python_compiled_is_said_not_to_be_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = cp.methods.fedavg().adding("mine", local=cp.parts.proximal(0.1))
    again(tmp_path / "run", method=own)
    again(tmp_path / "run", method=own)
    assert not caplog.messages
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace(f"{sys.implementation.cache_tag} ", "cpython-39 "))
    index = tmp_path / "run" / "checkpoint" / "checkpoint.json"
    kept = json.loads(index.read_text())
    index.write_text(json.dumps({**kept, "run": fingerprint(parse_toml(config.read_text(), ""))}))
    again(tmp_path / "run", method=own)
    assert len(caplog.messages) == 1
    assert "run was begun with your own method, by another version of Python" in caplog.messages[0]
    again(tmp_path / "named")
    again(tmp_path / "named")
    assert len(caplog.messages) == 1


def test_a_run_that_diverged_is_told_again_with_its_rounds(tmp_path: Path) -> None:
    for sentence in ("Training diverged", "diverged after round 2; resuming it would diverge again"):
        with pytest.raises(cp.Diverged, match=sentence) as told:
            again(tmp_path / "run", model=cp.models.mlp, local=cp.Local(optimizer=cp.sgd(1e30)), rounds=3, cohort=None)
        assert isinstance(told.value.run, cp.Run)
        assert (told.value.run.status, len(told.value.run.rounds)) == ("diverged", 2)


def test_a_run_in_use_is_left_alone(tmp_path: Path) -> None:
    again(tmp_path / "run")
    for changes in ({}, {"overwrite": True}):
        with Folder.open(tmp_path / "run").locked(), pytest.raises(cp.CounterpoiseError, match="Another process is"):
            again(tmp_path / "run", **changes)
    assert again(tmp_path / "run")[1] == []


# ---------------------------------------------------------------- overwrite


def test_a_run_is_replaced_if_the_user_says_so(tmp_path: Path) -> None:
    again(tmp_path / "run", method="scaffold", rounds=6)
    run, ran = again(tmp_path / "run", overwrite=True)
    assert ran == [1, 2, 3, 4]
    assert torch.equal(weights(run), weights(again(tmp_path / "new")[0]))
    there = [{str(path.relative_to(place)) for path in place.rglob("*")} for place in tmp_path.iterdir()]
    assert there[0] == there[1]
    assert again(tmp_path / "fresh", overwrite=True)[1] == [1, 2, 3, 4]  # nothing to replace


@pytest.mark.parametrize("place", ["notes.txt", "checkpoint/notes.txt", "more/notes.txt"])
def test_nothing_is_replaced_beside_files_of_somebody_else(place: str, tmp_path: Path) -> None:
    again(tmp_path / "run")
    path = tmp_path / "run" / place
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    with pytest.raises(cp.CounterpoiseError, match=r"run is left alone: beside its run it holds (notes|checkp|more)"):
        again(tmp_path / "run", overwrite=True, seed=2)
    path.unlink()
    if place.startswith("more"):
        path.parent.rmdir()
    assert again(tmp_path / "run")[1] == []


def test_a_folder_without_a_run_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(cp.CounterpoiseError, match="is not empty"):
        again(tmp_path, overwrite=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_run_that_is_refused_before_it_begins_replaces_nothing(tmp_path: Path) -> None:
    again(tmp_path / "run")
    with pytest.raises(cp.CounterpoiseError, match="cohort"):
        again(tmp_path / "run", overwrite=True, cohort=99)
    assert again(tmp_path / "run")[1] == []


# ---------------------------------------------------------------- a script, as a user runs it

SCRIPT = """
import sys, time
import counterpoise as cp
fed = cp.load("digits", partition=cp.dirichlet(0.5, clients=6), seed=0)
ran, pause = [], float(sys.argv[1])
def on_round(record):
    time.sleep(pause)
    ran.append(record.round)
run = cp.simulate("fedavg", fed, model=cp.models.mlp, rounds=20, out="run", on_round=on_round)
print(len(ran), len(run.rounds), run.status)
"""


def start(folder: Path, pause: float) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", SCRIPT, str(pause)]
    return subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_script_runs_twice_and_goes_on_after_ctrl_c(tmp_path: Path) -> None:
    process = start(tmp_path, 0.5)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and len(metrics.read_text().splitlines()) > 3):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert out == ""
    assert re.search(r"Stopped after round \d+ of 20\. Continue with: counterpoise resume run$", err.splitlines()[-1])
    out, err = start(tmp_path, 0).communicate(timeout=100)
    ran, rounds, status = out.split()
    assert (rounds, status, err) == ("20", "finished", "")
    assert 0 < int(ran) < 20
    assert start(tmp_path, 0).communicate(timeout=100) == ("0 20 finished\n", "")


def test_a_folder_called_own_is_not_taken_for_data_that_a_program_brought(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    assert begun_in(tmp_path / "run", "own") is None
    assert begun_in(tmp_path / "run", "clinics.csv") is None
    (tmp_path / "clinics.csv").touch()
    assert begun_in(tmp_path / "run", "clinics.csv") == tmp_path
