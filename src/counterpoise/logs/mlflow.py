"""MLflow: one MLflow run per run, on the server or in the database that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import os
import time
from typing import Any

from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.errors import CounterpoiseError
from counterpoise.logs.base import LOGGERS, Logger, Start, scalars
from counterpoise.registry import flatten

__all__ = ["mlflow"]

_FOLDER = "counterpoise.folder"
_STATUS = {"finished": "FINISHED", "stopped": "KILLED"}
_LONGEST = 500


def mlflow(uri: str | None = None, experiment: str = "counterpoise") -> Logger:
    """A logger that writes to the tracking server or database `uri`, by default what MLFLOW_TRACKING_URI names or
    ``sqlite:///mlflow.db``. A resumed run is found again by its folder.
    """
    state: dict[str, Any] = {}

    def begin(start: Start) -> None:
        try:
            from mlflow import MlflowClient
        except ImportError:
            raise CounterpoiseError("MLflow is not installed: pip install 'counterpoise[mlflow]'") from None
        client = MlflowClient(uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db")
        known = client.get_experiment_by_name(experiment)
        place = client.create_experiment(experiment) if known is None else known.experiment_id
        tags = {"mlflow.runName": f"{start.method}-{start.seed}"}
        earlier: list[Any] = []
        if start.folder is not None:
            tags[_FOLDER] = str(start.folder.resolve())
            if start.round:
                earlier = client.search_runs([place], f"tags.`{_FOLDER}` = '{tags[_FOLDER]}'", max_results=1)
        run = earlier[0] if earlier else client.create_run(place, tags=tags)
        state.update(client=client, run=run.info.run_id, told=0)
        if earlier:
            client.update_run(run.info.run_id, "RUNNING")
            told = client.get_metric_history(run.info.run_id, "cost/seconds")
            state["told"] = max((metric.step for metric in told), default=0)
        else:
            for name, value in flatten(start.settings or {"method": start.method, "seed": start.seed}).items():
                client.log_param(run.info.run_id, name, str(value)[:_LONGEST])

    def round(record: RoundRecord) -> None:
        if record.round <= state["told"]:  # repeated after a kill, to the same numbers up to rounding
            return
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, record.round) for name, value in scalars(record).items()]
        state["client"].log_batch(state["run"], metrics=metrics)

    def end(status: str) -> None:
        state["client"].set_terminated(state["run"], _STATUS.get(status, "FAILED"))

    return Logger(begin, round, end)


LOGGERS["mlflow"] = mlflow
