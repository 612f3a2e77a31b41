"""What a run's folder holds, by name: only these files are ever cleaned up or removed."""

from __future__ import annotations

import re

from counterpoise.runs.files import is_partial

__all__ = [
    "CLIENTS",
    "CONFIG",
    "FAILURE",
    "HOLDINGS",
    "INDEX",
    "METRICS",
    "REPORT",
    "any_of",
    "of_checkpoint",
    "of_run",
    "of_tensorboard",
    "or_partial",
]

CONFIG = "config.toml"
METRICS = "metrics.jsonl"
CLIENTS = "clients.jsonl"
HOLDINGS = "federation.json"
FAILURE = "failure.txt"
REPORT = "report.html"
INDEX = "checkpoint.json"


def or_partial(name: str, known: re.Pattern[str]) -> bool:
    """Whether a name is a known one, or what a kill leaves of a file of a known name."""
    return bool(known.fullmatch(name)) or is_partial(name, lambda of: bool(known.fullmatch(of)))


def any_of(*names: str) -> re.Pattern[str]:
    """Matches these names and no other."""
    return re.compile("|".join(map(re.escape, names)))


_RUN = any_of(CONFIG, METRICS, CLIENTS, HOLDINGS, FAILURE, REPORT)
_CHECKPOINT = re.compile(rf"{re.escape(INDEX)}|state-\d+\.safetensors|rows-\d+(-\d+)?\.safetensors")


def of_run(name: str) -> bool:
    """Whether a file of this name lies in a run's folder.

    >>> of_run("config.toml"), of_run("config.toml.0123456789abcdef.partial"), of_run("notes.txt")
    (True, True, False)
    """
    return or_partial(name, _RUN)


def of_checkpoint(name: str) -> bool:
    """Whether a file of this name lies in a checkpoint's folder."""
    return or_partial(name, _CHECKPOINT)


def of_tensorboard(name: str) -> bool:
    """Whether a file of this name lies in the folder of a run's events."""
    return name.startswith("events.out.tfevents.")
