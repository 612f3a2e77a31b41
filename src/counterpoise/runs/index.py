"""The index of a checkpoint: which round it is of, how the run ended, and the digests of its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from counterpoise.errors import CounterpoiseError, brief
from counterpoise.runs.contents import INDEX
from counterpoise.runs.kept import Index, checked
from counterpoise.texts import parse_json, read_text

__all__ = ["SCHEMA", "fingerprint", "read_index"]

SCHEMA = 1


def read_index(folder: Path) -> dict[str, Any]:
    """Read and check a checkpoint's index."""
    path = folder / INDEX
    try:
        index = parse_json(read_text(path), str(path))
    except FileNotFoundError:
        raise CounterpoiseError(
            f"There is no checkpoint in {folder}: the run stopped before its first round, or this is not a run."
        ) from None
    schema = index.get("schema") if isinstance(index, dict) else None
    if schema != SCHEMA and type(schema) is int:
        raise CounterpoiseError(f"{path} has schema {brief(schema)}, and this version of counterpoise reads {SCHEMA}.")
    checked(Index, index, str(path))
    return index  # type: ignore[no-any-return]


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A hash of the configuration without the number of rounds; a checkpoint stores that of its own run."""
    identity = {key: value for key, value in settings.items() if key != "rounds"}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
