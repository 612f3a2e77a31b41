"""What a run's folder and a comparison's hold, by name: only these files are ever cleaned up or removed."""

from __future__ import annotations

import re

from counterpoise.runs.files import is_partial

__all__ = [
    "CLIENTS",
    "COMPARISON",
    "CONFIG",
    "FAILURE",
    "HOLDINGS",
    "INDEX",
    "LOG",
    "METRICS",
    "REPORT",
    "of_checkpoint",
    "of_comparison",
    "of_run",
    "of_tensorboard",
]

CONFIG = "config.toml"
METRICS = "metrics.jsonl"
CLIENTS = "clients.jsonl"
HOLDINGS = "federation.json"
FAILURE = "failure.txt"
REPORT = "report.html"
COMPARISON = "compare.toml"
LOG = "workers.log"
INDEX = "checkpoint.json"


def _or_partial(name: str, known: re.Pattern[str]) -> bool:
    return bool(known.fullmatch(name)) or is_partial(name, lambda of: bool(known.fullmatch(of)))


def _any_of(*names: str) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, names)))


_RUN = _any_of(CONFIG, METRICS, CLIENTS, HOLDINGS, FAILURE, REPORT)
_COMPARISON = _any_of(COMPARISON, LOG, REPORT)
_CHECKPOINT = re.compile(rf"{re.escape(INDEX)}|state-\d+\.safetensors|rows-\d+(-\d+)?\.safetensors")


def of_run(name: str) -> bool:
    """Whether a file of this name lies in a run's folder.

    >>> of_run("config.toml"), of_run("config.toml.0123456789abcdef.partial"), of_run("notes.txt")
    (True, True, False)
    """
    return _or_partial(name, _RUN)


def of_checkpoint(name: str) -> bool:
    """Whether a file of this name lies in a checkpoint's folder."""
    return _or_partial(name, _CHECKPOINT)


def of_tensorboard(name: str) -> bool:
    """Whether a file of this name lies in the folder of a run's events."""
    return name.startswith("events.out.tfevents.")


def of_comparison(name: str) -> bool:
    """Whether a file of this name lies in a comparison's folder."""
    return _or_partial(name, _COMPARISON)
