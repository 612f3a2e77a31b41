"""A `ServerApp` for a method. It keeps its run in a folder and continues the run that it finds there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from counterpoise.engine.rounds.setup import Choice
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation
from counterpoise.flower.strategy import Strategy
from counterpoise.models.building import Model
from counterpoise.own import allow

__all__ = ["STOPPED", "server_app"]

STOPPED = "The run was stopped"
"""If a run ends with an error of ours, its line in the log begins with this."""


def server_app(
    method: Choice,
    federation: Callable[[Context], Federation],
    *,
    model: Model,
    folder: str | Path | None = None,
    **settings: Any,
) -> ServerApp:
    """A `ServerApp` for `flwr run`; `settings` are those of `Strategy`.

    It uses only the federation's server sets and its number of clients. The app's configuration may set ``rounds``,
    ``seed``, ``out`` (the run's folder on the server's machine; if it is empty, nothing is kept), ``patience`` (seconds
    that a round waits for nodes to connect) and ``timeout`` (seconds that a round waits for replies).

    Names of your own code, such as ``method="my_project.rules:ours"``, are imported from `folder`; in an app that is
    ``Path(__file__).parent``.
    """
    allow([method, model, settings.get("metrics")], folder)
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator,unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        _log_as_flower_does()
        config = context.run_config
        given = {
            name: config[name] for name in ("rounds", "seed", "out", "patience") if config.get(name) not in (None, "")
        }
        strategy = Strategy(method, federation(context), model=model, **settings | given)
        strategy.start(grid, timeout=float(config.get("timeout", 600)))

    return app


def _log_as_flower_does() -> None:
    """Send our log to the place of Flower's own log, which `flwr log` shows."""
    ours, theirs = logging.getLogger("counterpoise"), logging.getLogger("flwr")
    ours.handlers, ours.propagate = theirs.handlers, False
    ours.setLevel(logging.INFO)
    theirs.addFilter(_in_a_sentence)


def _in_a_sentence(record: logging.LogRecord) -> bool:
    """Flower logs why an app failed with a traceback. An error of ours is a sentence for the user and needs none."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, CounterpoiseError):
        record.msg, record.args, record.exc_info = f"{STOPPED}: {error}", (), None
    return True
