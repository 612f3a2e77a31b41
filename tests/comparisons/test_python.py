"""`cp.compare` from Python: the command line's plan and the single runs' numbers, with and without a folder."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import counterpoise as cp
from counterpoise.cli.comparing import carry_on
from counterpoise.comparisons.arms import compared
from counterpoise.comparisons.asking import asked_comparison
from counterpoise.comparisons.plan import read_plan

SETTINGS: dict[str, Any] = {"model": cp.models.linear, "rounds": 3, "cohort": 3, "local": cp.Local(batch=8)}


def federation(seed: int = 0) -> cp.Federation:
    return cp.load("synthetic", partition=cp.iid(clients=5), seed=seed)


def arrays() -> cp.Federation:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype("f")
    return cp.Federation.from_arrays(x, (x[:, 0] > 0).astype("i8"), partition=cp.iid(4), test=(x[:20], (x[:20, 0] > 0)))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def mine(scale: float) -> cp.Method:
    """FedAvg that goes `scale` of the way: its numbers cannot be written into a plan."""
    return cp.Method(
        "mine", weigh=(cp.parts.by_data(),), combine=(cp.parts.mean(),), update=(cp.parts.server_step(lr=scale),)
    )


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def alike(found: Any, run: cp.Run) -> None:
    """Batches of runs agree with single runs to rounding."""
    assert [r.cohort for r in found.records] == [r.cohort for r in run.rounds]
    for ours, theirs in zip(found.records, run.rounds, strict=True):
        assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-4)


# ---------------------------------------------------------------- without a folder


def test_each_run_has_the_numbers_of_a_single_one_and_nothing_is_kept(nowhere: Path) -> None:
    fed = federation()
    found = cp.compare(["fedavg", ("fedprox", {"mu": 5.0}), cp.methods.fedprox(mu=0.5)], fed, seeds=[1, 4], **SETTINGS)
    assert list(found.runs) == ["fedavg", "fedprox(mu=5.0)", "fedprox(mu=0.5)"]
    for label, mu in (("fedprox(mu=5.0)", 5.0), ("fedprox(mu=0.5)", 0.5)):
        for seed in (1, 4):
            alike(found.runs[label][seed], cp.simulate(cp.methods.fedprox(mu=mu), fed, seed=seed, **SETTINGS))
    for text in ("fedprox(mu=5.0)", ("fedprox", {"mu": 5.0})):
        alike(found.runs["fedprox(mu=5.0)"][1], cp.simulate(text, fed, seed=1, **SETTINGS))
    assert not list(nowhere.iterdir())
    ends = [found.runs["fedavg"][seed].records[-1].metrics["accuracy"] for seed in (1, 4)]
    assert found.table()["accuracy"]["fedavg"] == pytest.approx(sum(ends) / 2)
    pairs = [found.runs["fedprox(mu=5.0)"][seed].records[-1].metrics["accuracy"] for seed in (1, 4)]
    assert found.table()["difference"]["fedprox(mu=5.0)"] == pytest.approx(sum(pairs) / 2 - sum(ends) / 2)
    assert found.frame().groupby(["method", "seed"]).size().to_dict() == {
        (label, seed): 3 for label in found.runs for seed in (1, 4)
    }


def test_a_run_that_a_rule_stops_leaves_the_others() -> None:
    fed, rule = federation(), cp.when("accuracy", above=0.9595)
    alone = {seed: cp.simulate("fedavg", fed, seed=seed, stop=rule, **SETTINGS) for seed in (0, 1, 2)}
    found = cp.compare(["fedavg"], fed, seeds=3, stop=rule, **SETTINGS)
    ended = {seed: len(run.records) for seed, run in found.runs["fedavg"].items()}
    assert ended == {seed: len(run.rounds) for seed, run in alone.items()}
    assert len({*ended.values()}) > 1


def test_own_methods_a_model_and_arrays_are_compared(nowhere: Path) -> None:
    fed, model = arrays(), net()
    settings = {**SETTINGS, "model": model, "cohort": None}
    found = cp.compare({"half": mine(0.5), "whole": mine(1.0)}, fed, seeds=1, baseline="whole", **settings)
    assert (found.plan.baseline, found.stand.baseline) == ("whole", "whole")
    alike(found.runs["half"][0], cp.simulate(mine(0.5), fed, **settings))
    alike(found.runs["whole"][0], cp.simulate(mine(1.0), fed, **settings))
    assert not list(nowhere.iterdir())


def test_the_plan_is_the_command_lines() -> None:
    words = ["cohort=3", "local.batch=8", "model=linear", "data.partition={name='iid', clients=5}", "data.probe=0"]
    theirs = compared(
        "quickstart",
        ["fedavg", "fedprox(mu=0.5)"],
        [*words, "local.epochs=1", "local.optimizer={name='sgd', lr=0.1}"],
        2,
    )
    settings = {**SETTINGS, "rounds": 40, "local": cp.Local(batch=8, optimizer=cp.sgd(0.1)), "model": "linear"}

    def deal(seed: int) -> cp.Federation:
        return cp.load("digits", partition=cp.iid(clients=5), seed=seed)

    ours = asked_comparison(["fedavg", cp.methods.fedprox(mu=0.5)], deal, 2, "", **settings).plan
    assert (ours.arms, ours.seeds, ours.baseline) == (theirs.arms, theirs.seeds, theirs.baseline)
    values = {key: value for key, value in theirs.values.items() if key != "method"}
    assert ours.values["data"] == values["data"]
    for key in ("rounds", "cohort", "model", "engine", "limits"):
        assert ours.values[key] == values[key]
    fixed = asked_comparison(["fedavg"], deal(7), 2, "", **settings).plan
    assert fixed.values["data"] == {**values["data"], "seed": 7}
    shifted = asked_comparison(["fedavg"], lambda seed: deal(seed + 1), 2, "", **settings)
    assert (shifted.plan.values["data"]["name"], shifted.own) == ("own", ["federation"])
    assert shifted.federations[1].source["seed"] == 2


# ---------------------------------------------------------------- with a folder


def test_a_folder_is_gone_on_with_and_the_same_call_returns_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, out, model = arrays(), tmp_path / "out", net()
    settings = {**SETTINGS, "model": model, "cohort": None}
    whole = cp.compare(["fedavg", mine(0.5)], fed, seeds=2, **settings)

    heard = 0

    def stop(*_: Any) -> None:
        nonlocal heard
        heard += 1
        if heard == 6:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr("counterpoise.comparisons.board.Board.hear", stop)
        with pytest.raises(cp.Interrupted, match=r"Stopped with 0 of 4 runs done\. The same call goes on$"):
            cp.compare(["fedavg", mine(0.5)], fed, seeds=2, out=out, **settings)
    with pytest.raises(cp.CounterpoiseError, match="uses its author's own federation and model and method, which only"):
        carry_on(out, "", None, False)
    found = cp.compare(["fedavg", mine(0.5)], fed, seeds=2, out=out, **settings)
    assert not caplog.messages
    for label, runs in whole.runs.items():
        for seed, run in runs.items():
            assert found.runs[label][seed].status == "finished"
            for ours, theirs in zip(found.runs[label][seed].records, run.records, strict=True):
                assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-4)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")}
    more = cp.compare(["fedavg", mine(0.5)], fed, seeds=3, out=out, **settings)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [len(group.done) for group in more.groups] == [3, 3]
    assert read_plan(out).seeds == (0, 1, 2)
    with pytest.raises(cp.CounterpoiseError, match="the model begins with other weights") as told:
        cp.compare(["fedavg", mine(0.5)], fed, seeds=3, out=out, **{**settings, "model": net()})
    assert "5 other runs of this comparison differ too. To train fedavg, mine again, remove their" in str(told.value)
    with pytest.raises(cp.CounterpoiseError, match="a value that your own method holds or uses has changed") as told:
        cp.compare(["fedavg", mine(0.7), "fedprox"], fed, seeds=3, out=out, **settings)
    places = " ".join(f"{out}/mine/seed-{seed}" for seed in range(3))
    assert "2 other runs of this comparison differ too. " in str(told.value)
    assert f"To train mine again, remove its runs first: counterpoise runs rm {places}. Or " in str(told.value)
    assert not (out / "fedprox").exists()
    assert not list(out.rglob("failure.txt"))
    with pytest.raises(cp.CounterpoiseError, match="rounds was 3 and is 4"):
        cp.compare(["fedavg"], fed, out=out, **{**settings, "rounds": 4})
    again = cp.compare(["fedavg"], fed, seeds=1, out=out, overwrite=True, **{**settings, "rounds": 4})
    assert [len(run.records) for group in again.groups for run in group.runs] == [4]


@pytest.mark.slow
def test_a_call_returns_what_it_asks_for_and_leaves_the_rest_in_the_folder(tmp_path: Path) -> None:
    fed, settings = arrays(), {**SETTINGS, "cohort": None, "rounds": 1, "out": tmp_path / "out"}
    every = cp.compare(["fedavg", "fedprox", mine(0.5)], fed, seeds=3, **settings)
    assert repr(every).splitlines()[-1] == f"kept in: {tmp_path / 'out'}"
    found = cp.compare([mine(0.5), "fedprox"], fed, seeds=[2, 0], **settings)
    assert [(label, [*runs]) for label, runs in found.runs.items()] == [("mine", [2, 0]), ("fedprox", [2, 0])]
    assert repr(found).startswith("Comparison: 2 methods, 2 seeds, 1 round\n")
    assert repr(found).endswith("out (beside 5 runs that this call did not ask for)")
    assert "beside 5 runs" in found._repr_html_()
    assert (found.plan.baseline, every.plan.baseline) == ("mine", "fedavg")
    assert found.table()["difference"].isna().tolist() == [True, False]
    page = cp.report(found, tmp_path / "some.html").page
    assert "fedprox" in page
    assert "fedavg" not in page
    assert [len(group.runs) for group in cp.compare(["fedavg"], fed, seeds=4, **settings).groups] == [4]
    whole = read_plan(tmp_path / "out")
    assert ([arm.label for arm in whole.arms], whole.seeds) == (["fedavg", "fedprox", "mine"], (0, 1, 2, 3))
    assert whole.baseline == "fedavg"


def test_own_methods_are_found_when_their_label_is_taken_and_names_are_changed(tmp_path: Path) -> None:
    settings = {**SETTINGS, "rounds": 1, "seeds": 1, "out": tmp_path / "out"}
    cp.compare({"a": "fedavg", "b": "fedprox"}, arrays(), **settings)
    found = cp.compare({"b": mine(0.5), "plain": "fedavg"}, arrays(), baseline="b", **settings)
    assert {group.label: group.runs[0].method for group in found.groups} == {"b": "b", "plain": "fedavg"}
    assert found.stand.baseline == "b"
    assert [arm.label for arm in read_plan(tmp_path / "out").arms] == ["plain", "fedprox", "b"]
    again = cp.compare([mine(0.5).replacing("b")], arrays(), **settings)
    assert [*again.runs] == ["b"]


def test_a_label_that_is_taken_does_not_hide_an_own_method(tmp_path: Path) -> None:
    settings = {**SETTINGS, "rounds": 1, "seeds": 1, "out": tmp_path / "out"}
    cp.compare({"mine": "fedavg"}, arrays(), **settings)
    found = cp.compare([mine(0.5)], arrays(), **settings)
    assert {group.label: group.runs[0].method for group in found.groups} == {"mine (own)": "mine"}
    assert len(found.groups[0].done) == 1


def test_an_interruption_is_pythons_own_and_a_sentence_in_a_notebook() -> None:
    assert issubclass(cp.Interrupted, KeyboardInterrupt)
    assert cp.Interrupted("Stopped.")._render_traceback_() == ["Interrupted: Stopped."]


def test_what_has_names_is_done_by_the_command_lines_workers(tmp_path: Path) -> None:
    cp.compare({"mine": mine(0.5), "fedavg": "fedavg"}, federation, seeds=1, out=tmp_path / "out", **SETTINGS)
    found = cp.compare(["fedavg", "fedprox"], federation, seeds=2, out=tmp_path / "out", jobs=1, **SETTINGS)
    assert {label: [*runs] for label, runs in found.runs.items()} == {"fedavg": [0, 1], "fedprox": [0, 1]}
    alike(found.runs["fedprox"][1], cp.simulate("fedprox", federation(1), seed=1, **SETTINGS))
    assert (tmp_path / "out" / "workers.log").exists()
    assert repr(found).splitlines()[-1] == f"kept in: {tmp_path / 'out'} (beside 1 run that this call did not ask for)"


# ---------------------------------------------------------------- sweeps


def test_a_sweep_runs_every_combination_and_every_point(nowhere: Path) -> None:
    fed, model = arrays(), net()
    settings = {**SETTINGS, "model": model, "cohort": None}
    over = {"method.mu": np.array([0.5, 5.0]), "local.optimizer.lr": [0.05]}
    found = cp.sweep("fedprox", fed, over=over, at=[{"rounds": 2}], seeds=[3], **settings)
    assert list(found.runs) == ["mu=0.5, lr=0.05", "mu=5.0, lr=0.05", "rounds=2"]
    local = cp.Local(batch=8, optimizer=cp.sgd(0.05))
    for mu in (0.5, 5.0):
        single = cp.simulate(cp.methods.fedprox(mu=mu), fed, seed=3, **{**settings, "local": local})
        alike(found.runs[f"mu={mu}, lr=0.05"][3], single)
    alike(found.runs["rounds=2"][3], cp.simulate("fedprox", fed, seed=3, **{**settings, "rounds": 2}))
    assert found.best in found.runs
    assert repr(found).startswith("Sweep: 3 settings, 1 seed, 3 rounds\nsetting ")
    assert not list(nowhere.iterdir())


def pulled(mu: float, lr: float = 1.0) -> cp.Method:
    return cp.methods.fedprox(mu=mu, lr=lr).replacing("pulled", weigh=cp.parts.uniform())


def test_the_options_of_a_function_of_ones_own_are_swept_and_compared() -> None:
    fed, settings = arrays(), {**SETTINGS, "cohort": None, "rounds": 1}
    over = {"method.mu": [0.5, 5.0], "local.epochs": [1, 2]}
    found = cp.sweep((pulled, {"lr": 0.5}), fed, over=over, seeds=[3], **settings)
    assert list(found.runs) == ["mu=0.5, epochs=1", "mu=0.5, epochs=2", "mu=5.0, epochs=1", "mu=5.0, epochs=2"]
    alike(found.runs["mu=5.0, epochs=1"][3], cp.simulate(pulled(5.0, 0.5), fed, seed=3, **settings))
    assert found.runs["mu=5.0, epochs=1"][3].settings["method"]["called"] == "pulled(lr=0.5, mu=5.0)"
    some = [(pulled, {"mu": 0.5}), (pulled, {"mu": 5.0}), (cp.methods.fedprox, {"mu": 2})]
    found = cp.compare(some, fed, seeds=[3], **settings)
    assert list(found.runs) == ["pulled(mu=0.5)", "pulled(mu=5.0)", "fedprox(mu=2.0)"]
    alike(found.runs["pulled(mu=5.0)"][3], cp.simulate(pulled(5.0), fed, seed=3, **settings))


@pytest.mark.parametrize(
    ("method", "over", "sentence"),
    [
        (pulled, {"method.nu": [1]}, "There is no option 'nu' of method pulled. Known: lr, mu."),
        (pulled, {"method.lr": [1]}, "method pulled needs the option mu"),
        (pulled, {"method": ["fedavg"], "method.mu": [1]}, "method cannot be swept, because the method is your own."),
        (lambda mu: 3, {"method.mu": [1]}, "must return a Method, not 3."),
    ],
)
def test_a_function_of_ones_own_that_cannot_be_swept_is_refused(method: Any, over: Any, sentence: str) -> None:
    with pytest.raises(cp.CounterpoiseError, match=sentence):
        cp.sweep(method, arrays(), over=over, seeds=1, **{**SETTINGS, "cohort": None})


def test_a_comparison_is_not_added_to_a_sweep(tmp_path: Path) -> None:
    fed, settings = arrays(), {**SETTINGS, "cohort": None, "rounds": 1, "out": tmp_path / "out", "seeds": 1}
    cp.sweep("fedprox", fed, over={"method.mu": [0.1]}, **settings)
    with pytest.raises(cp.CounterpoiseError, match="The folder holds a sweep, and this is a comparison"):
        cp.compare(["fedavg"], fed, **settings)


def test_a_sweep_over_the_data_deals_it_anew() -> None:
    at = [{"data.partition.clients": 3}, {"data.partition.clients": 4}]
    found = cp.sweep("fedavg", federation(), at=at, seeds=1, **SETTINGS)
    assert [len(run.holdings["sizes"]) for runs in found.runs.values() for run in runs.values()] == [3, 4]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({}, "Say what to sweep over: over="),
        ({"over": {"method.mu": 0.1}}, "over takes a list of values for each setting"),
        ({"over": "method.mu=1"}, "over takes a list of values for each setting"),
        ({"at": {"method.mu": 0.1}}, "at takes a list of points"),
        ({"over": {"method.nu": [1]}}, "There is no option 'nu' of method fedprox."),
        ({"over": {"seed": [1, 2]}}, "The seed cannot be swept"),
        ({"over": {"local.epoch": [1]}}, "There is no setting 'local.epoch'"),
        ({"over": {"model.hidden": [1]}, "model": net}, "model.hidden cannot be swept, because the model is your own."),
        ({"over": {"data.heldout": [0.1]}, "federation": arrays()}, "because the federation is your own."),
        ({"over": {"method.mu": [1]}, "method": mine(1.0)}, "Give the function that makes it: cp.sweep(function, ..."),
        ({"over": {"method.mu": [1, 1]}}, "mu=1 is named twice."),
    ],
)
def test_a_mistake_in_a_sweep_is_one_sentence(changed: dict[str, Any], sentence: str) -> None:
    given = {"method": "fedprox", "federation": federation(), **SETTINGS, **changed}
    with pytest.raises(cp.CounterpoiseError) as told:
        cp.sweep(given.pop("method"), given.pop("federation"), **given)
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)


# ---------------------------------------------------------------- mistakes, and how it looks


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"methods": "fedavg"}, "methods must be a list such as"),
        ({"methods": []}, "methods must be a list such as"),
        ({"methods": ["fedavg", 3]}, "A method is a name such as"),
        ({"methods": ["fedpox"]}, "There is no method 'fedpox'. Did you mean 'fedprox'?"),
        (
            {"methods": ["fedavg", "fedavg"]},
            "fedavg is named twice. Name it once, or give one of the two other options.",
        ),
        (
            {"methods": [cp.methods.fedavg().replacing("mine", weigh=cp.parts.uniform())] * 2},
            "mine is named twice. Name it once, or label them: cp.compare({'a': ..., 'b': ...}, ...).",
        ),
        ({"out": __file__}, "test_python.py is a file. Choose another one."),
        ({"out": f"{__file__}/new"}, "test_python.py is a file. Choose another one."),
        ({"stop": cp.when("acuracy", above=0.5)}, "There is no metric 'acuracy' to stop by. Did you mean 'accuracy'?"),
        ({"stop": cp.when("acuracy", above=0.5), "out": "c"}, "There is no metric 'acuracy' to stop by."),
        ({"methods": {"": "fedavg"}}, "A method is named by a line of text, not ''."),
        ({"methods": ["fedavg"], "baseline": "x"}, "The baseline must be one of fedavg, not 'x'."),
        ({"federation": "digits"}, "federation must be made by cp.load(...), or be a function"),
        ({"federation": lambda seed: 3}, "federation(0) must return a Federation, not 3."),
        ({"seeds": 0}, "seeds must be a number of seeds from 1 to 10000"),
        ({"seeds": [1, 1]}, "or a list of different ones"),
        ({"rounds": 0}, "rounds must be a whole number"),
        ({"together": 0}, "together must be a whole number from 1 on, not 0."),
        ({"jobs": -1, "out": "c"}, "jobs must be a whole number from 1 on, not -1."),
        ({"jobs": True, "out": "c"}, "jobs must be a whole number from 1 on, not True."),
        ({"jobs": 2}, "jobs needs out=...: worker processes keep their runs in a folder."),
        ({"out": 3}, "out must be the path of a folder, not 3."),
        ({"seed": 3}, "There is no option 'seed' of compare. Did you mean 'seeds'?"),
    ],
)
def test_a_mistake_is_one_sentence(changed: dict[str, Any], sentence: str, nowhere: Path) -> None:
    given = {"methods": ["fedavg"], "federation": federation(), **SETTINGS, **changed}
    with pytest.raises(cp.CounterpoiseError) as told:
        cp.compare(given.pop("methods"), given.pop("federation"), **given)
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)
    assert not list(nowhere.iterdir())


def test_one_failure_leaves_the_others_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def broken(round: Any) -> Any:
        raise RuntimeError("no luck")

    bad = cp.Method(
        "bad", weigh=(cp.parts.by_data(),), combine=(cp.parts.mean(),), update=(cp.Part("b", apply=broken),)
    )
    found = cp.compare(["fedavg", bad], federation(), seeds=1, **SETTINGS)
    assert "bad failed: part b: its hook apply failed (broken in test_python.py" in repr(found)
    assert "Traceback" in caplog.text
    assert found.best == "fedavg"
    with pytest.raises(cp.CounterpoiseError, match="RuntimeError: no luck"):
        cp.compare([bad], federation(), seeds=1, **SETTINGS)


def test_progress_is_shown_if_it_is_asked_for_and_a_pipe_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    cp.compare(["fedavg"], federation(), seeds=1, **SETTINGS)
    assert capsys.readouterr() == ("", "")
    cp.compare(["fedavg"], federation(), seeds=1, progress=True, **SETTINGS)
    assert "comparison: 1 of 1 run done, 1 worker" in capsys.readouterr().err


def test_a_comparison_is_a_short_text_a_picture_and_a_figure() -> None:
    found = cp.compare(["fedavg", "feddua:fedavg", "avg"], federation(), seeds=2, **SETTINGS)
    lines = repr(found).splitlines()
    assert lines[0] == "Comparison: 3 methods, 2 seeds, 3 rounds"
    assert [line.split()[0] for line in lines[1:5]] == ["method", "fedavg", "feddua:fedavg", "avg"]
    assert max(map(len, lines)) <= 80
    html = found._repr_html_()
    assert (html.count("<circle"), html.count("<table")) == (6, 2)
    assert [trace.name for trace in found.plot().data if trace.name] == ["fedavg", "feddua:fedavg", "avg"]
    assert "fedavg" in found.to_markdown()
    assert "toprule" in found.to_latex()
