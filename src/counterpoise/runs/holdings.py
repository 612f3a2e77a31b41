"""Who holds what, as a run's folder keeps it in ``federation.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["HOLDINGS", "holdings", "true_counts"]

HOLDINGS = "federation.json"


def holdings(folder: Path) -> Mapping[str, Any] | None:
    """What `counterpoise.federation.overview.holdings` had to say; None where the folder does not hold it whole."""
    try:
        found = json.loads((folder / HOLDINGS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def true_counts(folder: Path | None) -> dict[int, float] | None:
    """What each client truly trains on, where it is on record."""
    sizes = None if folder is None else (holdings(folder) or {}).get("sizes")
    return dict(enumerate(sizes)) if isinstance(sizes, list) else None
