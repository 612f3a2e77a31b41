"""What goes wrong, told to a person: what, where, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["CounterpoiseError", "Diverged", "Interrupted", "unknown"]


class CounterpoiseError(ValueError):
    """A mistake its reader can mend. The message is the whole story; no traceback is needed."""


class Diverged(CounterpoiseError):
    """Training left the finite numbers. `run` holds everything up to the last good round."""

    run: object | None = None


class Interrupted(KeyboardInterrupt):
    """A person stopped the run. The message says how to go on; `run` holds the finished rounds."""

    run: object | None = None
    signal: int = 2


def unknown(kind: str, name: object, known: Iterable[str], where: str = "") -> CounterpoiseError:
    """The error for a name that nothing answers to, with the nearest names that exist.

    >>> str(unknown("method", "fedpox", ["fedavg", "fedprox"]))
    "There is no method 'fedpox'. Did you mean 'fedprox'? Known: fedavg, fedprox."
    """
    known = sorted(known)
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    place = f" {where}" if where else ""
    return CounterpoiseError(f"There is no {kind} {str(name)!r}{place}.{hint} Known: {', '.join(known)}.")
