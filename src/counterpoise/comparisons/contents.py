"""The names of the files in a comparison's folder, beside its runs. No other file is ever cleaned up or removed."""

from __future__ import annotations

from counterpoise.runs.contents import REPORT, any_of, or_partial

__all__ = ["COMPARISON", "LOG", "SIGN", "of_comparison"]

COMPARISON = "compare.toml"
LOG = "workers.log"
SIGN = "at-work"

_KNOWN = any_of(COMPARISON, LOG, REPORT, SIGN)


def of_comparison(name: str) -> bool:
    """Whether a comparison's folder may hold a file of this name."""
    return or_partial(name, _KNOWN)
