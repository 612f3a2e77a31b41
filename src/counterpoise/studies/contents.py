"""The names of the files in a study's folder, beside the folders of its cells."""

from __future__ import annotations

from counterpoise.comparisons.contents import LOG, SIGN
from counterpoise.runs.contents import any_of, or_partial

__all__ = ["RESULTS", "STUDY", "of_study"]

STUDY = "study.toml"
RESULTS = "results.json"

_KNOWN = any_of(STUDY, RESULTS, LOG, SIGN)


def of_study(name: str) -> bool:
    """Whether a study's folder may hold a file of this name."""
    return or_partial(name, _KNOWN)
