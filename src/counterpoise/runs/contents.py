"""The names of the files in a run's folder. No other file is ever cleaned up or removed."""

from __future__ import annotations

import re

from counterpoise.runs.files import is_partial

__all__ = [
    "BATCH",
    "CLIENTS",
    "CONFIG",
    "FAILURE",
    "HOLDINGS",
    "INDEX",
    "METRICS",
    "MODEL",
    "REPORT",
    "any_of",
    "of_checkpoint",
    "of_run",
    "of_tensorboard",
    "or_partial",
]

BATCH = "batch.json"
CONFIG = "config.toml"
METRICS = "metrics.jsonl"
CLIENTS = "clients.jsonl"
HOLDINGS = "federation.json"
FAILURE = "failure.txt"
MODEL = "model.safetensors"
REPORT = "report.html"
INDEX = "checkpoint.json"


def or_partial(name: str, known: re.Pattern[str]) -> bool:
    """Whether a name is known, or is the temporary name of a known file that was being written."""
    return bool(known.fullmatch(name)) or is_partial(name, lambda of: bool(known.fullmatch(of)))


def any_of(*names: str) -> re.Pattern[str]:
    """A pattern that matches exactly these names."""
    return re.compile("|".join(map(re.escape, names)))


_RUN = any_of(BATCH, CONFIG, METRICS, CLIENTS, HOLDINGS, FAILURE, MODEL, REPORT)
_CHECKPOINT = re.compile(rf"{re.escape(INDEX)}|state-\d+\.safetensors|rows-\d+(-\d+)?\.safetensors")


def of_run(name: str) -> bool:
    """Whether a run's folder may hold a file of this name.

    >>> of_run("config.toml"), of_run("config.toml.0123456789abcdef.partial"), of_run("notes.txt")
    (True, True, False)
    """
    return or_partial(name, _RUN)


def of_checkpoint(name: str) -> bool:
    """Whether a checkpoint's folder may hold a file of this name."""
    return or_partial(name, _CHECKPOINT)


def of_tensorboard(name: str) -> bool:
    """Whether a run's folder of TensorBoard events may hold a file of this name."""
    return name.startswith("events.out.tfevents.")
