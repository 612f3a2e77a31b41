"""What a comparison's folder holds beside its runs, by name: only these files are ever cleaned up or removed."""

from __future__ import annotations

from counterpoise.runs.contents import REPORT, any_of, or_partial

__all__ = ["COMPARISON", "LOG", "of_comparison"]

COMPARISON = "compare.toml"
LOG = "workers.log"

_KNOWN = any_of(COMPARISON, LOG, REPORT)


def of_comparison(name: str) -> bool:
    """Whether a file of this name lies in a comparison's folder."""
    return or_partial(name, _KNOWN)
