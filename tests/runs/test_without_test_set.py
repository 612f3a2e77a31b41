"""Data of one's own without a test set: the clients' held-out samples are what is shown."""

from __future__ import annotations

import html
import io
import json
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import counterpoise as cp
from counterpoise.cli.running import _show
from counterpoise.cli.shelf import list_all, show_one
from counterpoise.comparisons.plan import Arm, Plan
from counterpoise.comparisons.tables import on_clients
from counterpoise.display.console import Console
from counterpoise.errors import CounterpoiseError, changed
from counterpoise.measures import own_curve


def hospitals(heldout: float = 0.25) -> cp.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    parts = {f"h{i}": (x[i::4], y[i::4]) for i in range(4)}
    return cp.Federation.from_datasets(parts, heldout=heldout)


def test_a_run_shows_the_accuracy_on_held_out_samples() -> None:
    run = cp.simulate("fedavg", hospitals(), model="linear", rounds=2)
    own = run.curve("personal_accuracy")[-1][1]
    assert run.accuracy is None
    assert repr(run) == f"Run(fedavg, seed 0, 2 rounds, finished, accuracy {own:.4f} on clients' held-out data)"
    assert f"{own:.2%}, best" in run._repr_html_()
    assert list(run.plot().data[0].y)[-1] == pytest.approx(own)


def test_a_comparison_is_by_held_out_samples() -> None:
    found = cp.compare(["fedavg", "fedprox(mu=5)"], hospitals(), model="linear", rounds=2, seeds=2)
    assert found.stand.metric == "client_accuracy"
    means = {
        label: np.mean([100 * own_curve(run.records)[-1][1] for run in seeds.values()])
        for label, seeds in found.runs.items()
    }
    assert {row.label: 100 * row.mean for row in found.stand.rows} == pytest.approx(means)
    assert found.verdict[0].startswith("best: ")
    assert "clients' accuracy" in found.verdict[0]
    assert on_clients("client_accuracy") in " ".join(repr(found).split())
    assert found.plot().data
    assert "(too wide: gap, traffic, seconds; see table())" in repr(found)
    page = cp.report(found).page
    assert "fedavg and fedprox(mu=5.0) on own data of h0, h1, h2 and h3" in page
    assert "linear on own data." in page
    call = "cp.compare(['fedavg', 'fedprox(mu=5.0)'], federation, model='linear', rounds=2, seeds=[0, 1], ...)"
    assert call in html.unescape(page)


@pytest.mark.parametrize("heldout", [0.0, 0.25])
def test_a_run_that_will_measure_nothing_is_warned_of_before_its_first_round(
    heldout: float, caplog: pytest.LogCaptureFixture
) -> None:
    warned: list[bool] = []
    cp.simulate(
        "fedavg",
        hospitals(heldout),
        model="linear",
        rounds=1,
        on_round=lambda _: warned.append("heldout=0.2" in caplog.text),
    )
    assert warned == [not heldout]


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_a_run_has_three_names_for_what_it_measured(method: str) -> None:
    run = cp.simulate(method, hospitals(), model="linear", rounds=2)
    last = run.rounds[-1].clients
    of_clients = np.mean([*last["accuracy"].values()])
    assert run.curve() == []
    assert run.last("client_accuracy") == run.summary()["client_accuracy"] == pytest.approx(of_clients)
    own = np.mean([*last.get("personal_accuracy", last["accuracy"]).values()])
    assert run.last("personal_accuracy") == pytest.approx(own)
    assert (run.personal is None) is (method == "fedavg")


def test_without_anything_measured_that_is_said() -> None:
    found = cp.compare(["fedavg", "fedprox"], hospitals(0.0), model="linear", rounds=1, seeds=1)
    assert found.verdict == [
        "Nothing was measured, so there is no best one: give a test set, or hold samples of the clients back."
    ]
    with pytest.raises(CounterpoiseError, match="no test set and no client held samples back"):
        found.plot()


def test_personal_models_are_the_only_table_if_nothing_else_was_measured() -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    model = cp.models.with_norm(net, "local")
    found = cp.compare(["fedavg", "fedprox"], hospitals(), model=model, rounds=2, seeds=2)
    assert (found.stand.metric, found.stand.own) == ("personal_accuracy", ())
    assert on_clients("personal_accuracy") in " ".join(repr(found).split())


def test_every_setting_that_differs_is_told_names_first(tmp_path: Path) -> None:
    def plan(**model: object) -> Plan:
        return Plan("compare", "s", "", (0,), (Arm("a", "a", {}),), "a", {"model": model, "rounds": 3})

    with pytest.raises(
        CounterpoiseError, match=r"model.name was 'mlp' and is 'linear', model.hidden was 64 and is not set\. "
    ):
        plan(name="mlp", hidden=64).extended(plan(name="linear"))
    assert changed("stop.above", None, 0.9) == "stop.above was not set and is 0.9"


@pytest.mark.parametrize("metric", ["accuracy", "personal_accuracy"])
def test_an_accuracy_above_one_is_refused(metric: str) -> None:
    with pytest.raises(CounterpoiseError, match="accuracy is from 0 to 1, and above is 90"):
        cp.when(metric, above=90)
    assert cp.when("loss", above=90).above == 90
    assert cp.when(metric, above=0.9, patience=5).patience == 5


def test_a_name_with_colons_is_printed_as_it_is() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print("feddua:new:ours", markup=False)
    assert console.export_text() == "feddua:new:ours\n"


def test_a_notebook_shows_a_mistake_as_a_sentence_and_the_users_own_traceback() -> None:
    with pytest.raises(CounterpoiseError) as met:
        cp.Federation.from_datasets(5)
    assert met.value._render_traceback_() == [f"CounterpoiseError: {met.value}"]
    error = CounterpoiseError("The loss failed.")
    error.__cause__ = ZeroDivisionError("division by zero")
    error.add_note("What to do.")
    *cause, last = error._render_traceback_()
    assert "ZeroDivisionError: division by zero" in "".join(cause)
    assert last == "CounterpoiseError: The loss failed.\nWhat to do."


@pytest.mark.parametrize("tested", [True, False])
def test_a_regression_is_shown_by_its_loss(tested: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2)).astype(np.float32)
    y = x[:, 0].astype(np.float32)
    parts = {f"h{i}": (x[i::4], y[i::4]) for i in range(4)}
    fed = cp.Federation.from_datasets(parts, test=(x, y) if tested else None, heldout=0.25)
    run = cp.simulate("fedavg", fed, model=nn.Linear(2, 1), loss="squared-error", rounds=2, out=tmp_path / "run")
    value = run.loss if tested else own_curve(run.rounds, "loss")[-1][1]
    assert value is not None
    where = "" if tested else " on clients' held-out data"
    assert repr(run).endswith(f", loss {value:.4f}{where})")
    _show(run, False, None, True)
    assert capsys.readouterr().out.startswith(f"fedavg: loss {value:.4g}{where} after 2 rounds")


def test_a_listing_shows_the_accuracy_on_held_out_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = cp.simulate("fedavg", hospitals(), model="linear", rounds=1, out=tmp_path / "run")
    value = run.last("client_accuracy")
    list_all([tmp_path], "", "", "", "", False)
    told = capsys.readouterr().out
    assert f" {100 * value:.1f} %*" in told
    assert told.endswith("* mean over clients on their held-out data: nothing was measured on a test set\n")
    list_all([tmp_path], "", "", "", "", True)
    (plain,) = json.loads(capsys.readouterr().out)
    assert [plain[f"{kind}accuracy"] for kind in ("", "client_", "personal_")] == [None, value, None]


def test_a_run_is_shown_client_by_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = cp.simulate("ditto", hospitals(), model="linear", rounds=1, out=tmp_path / "run")
    server, own = (run.rounds[-1].clients[name] for name in ("accuracy", "personal_accuracy"))
    show_one(tmp_path / "run", "accuracy", None, False)
    told = capsys.readouterr().out.splitlines()
    assert "client  clients' accuracy  personal accuracy" in told
    for client in range(4):
        cells = [f"h{client}", f"{100 * server[client]:.1f}", "%", f"{100 * own[client]:.1f}", "%"]
        assert cells in [line.split() for line in told]
    show_one(tmp_path / "run", "", None, True)
    plain = json.loads(capsys.readouterr().out)["clients"][3]
    assert plain == {"client": 3, "name": "h3", "client_accuracy": server[3], "personal_accuracy": own[3]}
