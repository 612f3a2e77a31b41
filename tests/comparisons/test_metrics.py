"""Runs compared by any metric that they measured, personal ones included."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import counterpoise as cp
from counterpoise.cli.comparing import Shown
from counterpoise.cli.shelf import show_one
from counterpoise.cli.standings import compare_all
from counterpoise.comparisons.arms import compared
from counterpoise.comparisons.collection import Group
from counterpoise.comparisons.ranking import reached, verdict
from counterpoise.comparisons.standing import stand
from counterpoise.comparisons.tables import as_plain, columns
from counterpoise.engine.rounds.records import Outcome, RoundRecord
from counterpoise.reports import write
from counterpoise.reports.chart import Table
from counterpoise.reports.report import sections
from counterpoise.reports.study import study
from counterpoise.runs.saved import SavedRun


def record(round: int, metrics: Mapping[str, float], **clients: Mapping[int, float]) -> RoundRecord:
    return RoundRecord(round, (0, 1), Outcome({0: 1, 1: 1}, None), dict(metrics), clients=clients, bytes_up=10)


def group(label: str, *ends: tuple[float, float, float]) -> Group:
    """A run for each seed: accuracy, Brier score, and the accuracy of the second client's own model."""
    runs = []
    for seed, (accuracy, brier, own) in enumerate(ends):
        settings = {"method": {"name": label}, "seed": seed, "rounds": 2}
        measured = {"accuracy": accuracy, "loss": 1.0, "brier": brier}
        records = [
            record(1, {"train_loss": 2.0}, accuracy={0: 0.1, 1: 0.1}, personal_accuracy={1: 0.3}),
            record(2, measured, accuracy={0: 0.5, 1: 0.2}, personal_accuracy={1: own}),
        ]
        runs.append(SavedRun(None, settings, records, "finished", "", datetime.datetime.now().astimezone()))
    return Group(label, tuple(runs))


GROUPS = [group("a", (0.9, 0.30, 0.7), (0.8, 0.34, 0.9)), group("b", (0.7, 0.20, 0.5), (0.6, 0.16, 0.6))]


def test_a_comparison_is_by_the_metric_asked_for() -> None:
    found = stand(GROUPS, "a", metric="brier")
    assert found.lower
    assert [row.mean for row in found.rows] == pytest.approx([0.32, 0.18])
    assert found.rows[1].paired.difference == pytest.approx(-0.14)
    assert columns(found)[0][1] == "brier"
    assert columns(found)[1][1][1].startswith("0.1800 ± ")
    assert verdict(found)[0].startswith("best: b, brier 0.1800 [")
    assert not found.own


def test_personal_accuracy_is_the_mean_over_clients_of_the_model_each_would_use() -> None:
    found = stand(GROUPS, "a", metric="personal_accuracy")
    means = [((0.5 + 0.7) / 2 + (0.5 + 0.9) / 2) / 2, ((0.5 + 0.5) / 2 + (0.5 + 0.6) / 2) / 2]
    assert [row.mean for row in found.rows] == pytest.approx(means)
    assert columns(found)[0][1] == "personal accuracy (%)"
    assert verdict(found)[0].startswith("best: a, personal accuracy 65.00 % [")
    assert reached(found, 0.62) == [
        "personal accuracy 0.62 reached by a: in round 2, after 20 B both ways (mean over 1 of 2 seeds)",
        "personal accuracy 0.62 reached by b: never",
    ]
    assert as_plain(found)[0]["runs"][0]["measures"]["accuracy (last round)"] == 0.9
    both = stand(GROUPS, "a")
    assert [row.mean for row in both.own] == pytest.approx(means)


def test_clients_accuracy_is_the_mean_over_clients_of_the_servers_model() -> None:
    found = stand(GROUPS, "a", metric="client_accuracy")
    assert [row.mean for row in found.rows] == pytest.approx([0.35, 0.35])
    assert found.rows[0].gap == pytest.approx(0.3)
    assert columns(found)[0][1] == "clients' accuracy (%)"
    assert not found.own


def test_an_unknown_metric_names_those_that_the_runs_have() -> None:
    with pytest.raises(cp.CounterpoiseError) as told:
        stand(GROUPS, "a", metric="f1")
    known = "accuracy, brier, client_accuracy, loss, personal_accuracy, train_loss"
    assert str(told.value) == f"There is no metric 'f1' in these runs. Known: {known}."


def test_every_command_takes_a_metric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fed = cp.load("synthetic", partition=cp.iid(clients=3))
    settings: dict[str, Any] = {"model": cp.models.linear, "rounds": 1, "metrics": ["accuracy", "brier"]}
    run = cp.simulate("fedavg", fed, out=tmp_path / "run", **settings)
    brier = run.rounds[-1].metrics["brier"]
    compare_all([tmp_path / "run"], None, "", "", "", "", "text", "brier", None, True)
    found = json.loads(capsys.readouterr().out)
    assert (found["metric"], found["groups"][0]["mean"]) == ("brier", pytest.approx(brier))
    show_one(tmp_path / "run", "brier", None, True)
    measures = json.loads(capsys.readouterr().out)["measures"]
    assert measures["brier (last round)"] == pytest.approx(brier)
    with pytest.raises(cp.CounterpoiseError, match="There is no metric 'f1' in this run"):
        show_one(tmp_path / "run", "f1", None, True)
    parts = sections(study([tmp_path / "run"], "brier"))[0].parts
    headline = next(part for part in parts if isinstance(part, Table))
    assert "brier" in headline.columns
    assert headline.rows[0][list(headline.columns).index("brier")] == f"{brier:.4f}"
    with pytest.raises(cp.CounterpoiseError, match="There is no metric 'f1' in these runs"):
        write(tmp_path / "run", metric="f1")
    assert cp.report(run, metric="brier").path == tmp_path / "run" / "report.html"


def test_a_metric_that_nothing_will_measure_is_refused_before_the_runs() -> None:
    plan = compared("quickstart", ["fedavg"])
    for name in ("", "accuracy", "loss", "personal_loss", "train_loss"):
        Shown(name).check(plan)
    with pytest.raises(cp.CounterpoiseError, match="There is no metric 'brier' in these runs"):
        Shown("brier").check(plan)
    Shown("brier").check(compared("quickstart", ["fedavg"], ["metrics=['brier']"]))


def test_a_comparison_in_python_is_looked_at_by_another_metric() -> None:
    fed = cp.load("synthetic", partition=cp.iid(clients=3))
    found = cp.compare(["fedavg", "fedprox"], fed, seeds=1, model=cp.models.linear, rounds=2)
    by_loss = found.by("loss")
    assert by_loss.table()["loss"]["fedavg"] == found.runs["fedavg"][0].records[-1].metrics["loss"]
    with pytest.raises(cp.CounterpoiseError, match="There is no metric 'f1' in these runs"):
        found.by("f1")
