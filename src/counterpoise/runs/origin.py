"""Where a run was begun. A path to data is relative to that folder, not to the one in which the run is resumed."""

from __future__ import annotations

import os
from pathlib import Path

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.catalogue import DATASETS
from counterpoise.runs.config import OWN

__all__ = ["begun_in", "check_here"]


def begun_in(folder: Path, data: str) -> Path | None:
    """If a run's data is not found from the current folder: the nearest folder above the run's from which it is.

    None otherwise, and for data that have no path. A fingerprint, checked later, tells other data of that name apart.
    """
    if data == OWN or data in DATASETS or ":" in data:
        return None
    if os.path.isabs(data) or os.path.exists(os.path.expanduser(data)):
        return None
    return next((above for above in folder.resolve().parents if os.path.exists(above / data)), None)


def check_here(folder: Path, data: str) -> None:
    """Refuse to resume a run whose data lies in the folder that it was begun in."""
    if (home := begun_in(folder, data)) is not None:
        raise CounterpoiseError(
            f"The run in {folder} was begun in another folder: its data, {data}, is not here but in {home}. "
            "Change to that folder first, for example with os.chdir."
        )
