"""Which client holds which data, as a run's folder records it in ``federation.json``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from counterpoise.errors import CounterpoiseError
from counterpoise.runs.contents import HOLDINGS
from counterpoise.runs.kept import Holdings, checked
from counterpoise.texts import parse_json, read_text

__all__ = ["HOLDINGS", "check_simulated", "holdings", "true_counts"]


def holdings(folder: Path) -> Mapping[str, Any] | None:
    """What `counterpoise.federation.overview.holdings` returned; None if the file is missing or damaged."""
    with contextlib.suppress(CounterpoiseError, FileNotFoundError, NotADirectoryError):
        path = folder / HOLDINGS
        return checked(Holdings, parse_json(read_text(path), str(path)), str(path)).model_dump(exclude_none=True)
    return None


def check_simulated(folder: Path) -> None:
    """Refuse to resume a deployment, which is recognised by client names without sizes."""
    known = holdings(folder) or {}
    if "client_names" in known and "sizes" not in known:
        raise CounterpoiseError(
            f"The run in {folder} is a deployment, and only its nodes can continue it. Submit its app again, with the same "
            "out: with flwr run, or with counterpoise deploy local."
        )


def true_counts(folder: Path | None) -> dict[int, float] | None:
    """How many samples each client truly trains on; None if that is not recorded."""
    sizes = None if folder is None else (holdings(folder) or {}).get("sizes")
    return dict(enumerate(sizes)) if isinstance(sizes, list) else None
