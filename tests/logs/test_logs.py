"""Loggers: what TensorBoard, MLflow and W&B were told is read back from them."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

import counterpoise as cp
from counterpoise.logs import Logger, scalars
from counterpoise.logs.base import Start

SETTINGS: dict[str, Any] = {"model": cp.models.linear, "cohort": 3}


def federation() -> cp.Federation:
    return cp.load("digits", partition=cp.iid(clients=4))


def listening(heard: list[Any], fail: int = 0) -> Logger:
    def round(record: Any) -> None:
        if record.round == fail:
            raise OSError("the server is away")
        heard.append(record.round)

    return Logger(lambda start: heard.append(start), round, heard.append)


def test_a_logger_hears_a_beginning_every_round_and_an_end(tmp_path: Path) -> None:
    heard: list[Any] = []
    log = listening(heard)
    run = cp.simulate(
        "fedavg", federation(), rounds=3, out=tmp_path / "run", log=log, on_round=lambda r: r.round == 2, **SETTINGS
    )
    assert heard[1:] == [1, 2, "finished"]
    assert heard[0] == Start("fedavg", 0, run.settings, tmp_path / "run", 0)
    cp.resume(tmp_path / "run", log=[log, log])
    assert [one.round for one in heard[4:6]] == [2, 2]
    assert heard[6:] == [3, 3, "finished", "finished"]


def test_a_logger_that_fails_costs_no_run(caplog: pytest.LogCaptureFixture) -> None:
    bad: list[Any] = []
    good: list[Any] = []
    with caplog.at_level(logging.WARNING):
        run = cp.simulate("fedavg", federation(), rounds=3, log=[listening(bad, fail=2), listening(good)], **SETTINGS)
    assert run.status == "finished"
    assert bad[1:] == [1]
    assert good[1:] == [1, 2, 3, "finished"]
    assert [r.getMessage() for r in caplog.records] == [
        "A logger failed and is not called again in this run: OSError: the server is away"
    ]


@pytest.mark.parametrize(("raised", "status"), [(KeyboardInterrupt, "stopped"), (RuntimeError, "failed")])
def test_how_a_run_ended_is_told(raised: type[BaseException], status: str) -> None:
    def stop(record: Any) -> None:
        raise raised

    heard: list[Any] = []
    with pytest.raises(raised):
        cp.simulate("fedavg", federation(), rounds=3, log=listening(heard), on_round=stop, **SETTINGS)
    assert heard[1:] == [1, status]


def test_names_and_mistakes() -> None:
    with pytest.raises(cp.CounterpoiseError, match=r"There is no logger 'tensorbord'. Did you mean 'tensorboard'\?"):
        cp.simulate("fedavg", federation(), rounds=1, log="tensorbord", **SETTINGS)
    with pytest.raises(cp.CounterpoiseError, match="log takes loggers or their names"):
        cp.simulate("fedavg", federation(), rounds=1, log=[3], **SETTINGS)


def test_the_numbers_of_a_round_are_finite_and_named() -> None:
    run = cp.simulate("fedavg", federation(), rounds=1, **SETTINGS)
    found = scalars(run.rounds[0])
    assert found["server/accuracy"] == run.accuracy
    each = run.rounds[0].clients["accuracy"].values()
    assert found["clients/accuracy_mean"] == pytest.approx(sum(each) / len(each))
    assert (found["clients/heard"], found["cost/bytes_up"]) == (3, run.bytes_up)


def test_tensorboard_reads_the_events_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard: pip install 'counterpoise[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    cp.simulate(
        "fedavg", federation(), rounds=4, out=out, log="tensorboard", on_round=lambda r: r.round == 2, **SETTINGS
    )
    run = cp.resume(out, log="tensorboard")
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("server/accuracy")] == [
        (r, pytest.approx(v)) for r, v in run.curve()
    ]
    assert [e.value for e in events.Scalars("cost/bytes_up")] == [r.bytes_up for r in run.rounds]
    assert b'"name": "fedavg"' in events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0]
    with pytest.raises(cp.CounterpoiseError, match="Say where TensorBoard's events go"):
        cp.simulate("fedavg", federation(), rounds=1, log="tensorboard", **SETTINGS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_the_run_back(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow: pip install 'counterpoise[mlflow]'")
    out, uri = tmp_path / "run", f"sqlite:///{tmp_path}/mlflow.db"
    log = cp.logs.mlflow(uri)
    cp.simulate("fedprox", federation(), rounds=4, out=out, log=log, on_round=lambda r: r.round == 2, **SETTINGS)
    run = cp.resume(out, log=log)
    client = mlflow.MlflowClient(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("counterpoise").experiment_id])
    history = client.get_metric_history(found.info.run_id, "server/accuracy")
    assert [(m.step, m.value) for m in history] == run.curve()
    assert found.info.status == "FINISHED"
    assert (found.data.params["method.name"], found.data.params["method.mu"]) == ("fedprox", "0.01")
    assert found.data.tags["counterpoise.folder"] == str(out)


def test_wandb_reads_the_run_back_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb: pip install 'counterpoise[wandb]'")
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    monkeypatch.setenv("WANDB_MODE", "offline")
    out = tmp_path / "run"
    run = cp.simulate("fedprox", federation(), rounds=3, out=out, log=cp.logs.wandb(folder=tmp_path), **SETTINGS)
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")

    def read() -> list[Any]:
        store, found = DataStore(), []
        store.open_for_scan(str(path))
        while data := store.scan_data():
            found.append(Record.FromString(data))
        store.close()
        return found

    end = time.monotonic() + 30  # W&B's own process writes the file after `finish` has returned
    while not (records := read()) or not any(r.HasField("exit") for r in records):
        assert time.monotonic() < end
        time.sleep(0.05)
    told = [{i.key or i.nested_key[0]: json.loads(i.value_json) for i in r.history.item} for r in records]
    assert [(line["_step"], line["server/accuracy"]) for line in told if "server/accuracy" in line] == run.curve()
    (begun,) = (r.run for r in records if r.HasField("run"))
    settings = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert (begun.project, begun.display_name, settings["method"]["name"]) == ("counterpoise", "fedprox-0", "fedprox")
    assert [r.exit.exit_code for r in records if r.HasField("exit")] == [0]
    assert sorted(p.name for p in out.iterdir() if p.is_symlink()) == []
