"""Errors written for people: what went wrong, where, and what to do about it."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

__all__ = ["CounterpoiseError", "Diverged", "Failed", "Interrupted", "brief", "takes_only_its_options", "unknown"]

Made = TypeVar("Made", bound=Callable[..., Any])

_SHOWN = 200
"""The most characters of a value that an error shows."""


class CounterpoiseError(ValueError):
    """A mistake that the reader can fix. The message says everything; no traceback is needed."""


class Diverged(CounterpoiseError):
    """Training reached numbers that are not finite. `run` holds everything up to the last good round."""

    run: object | None = None


class Failed(CounterpoiseError):
    """A run finished all its rounds, but none of them trained the model. `run` holds the rounds."""

    run: object | None = None


class Interrupted(KeyboardInterrupt):
    """A person stopped the run. The message says how to continue; `run` holds the finished rounds."""

    run: object | None = None
    signal: int = 2


def brief(value: object) -> str:
    """A value as an error shows it: cut if it is long, and described if it cannot be written out.

    >>> brief("fedprox"), brief(1 << 100_000)
    ("'fedprox'", 'a value of type int that is too large to show')
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def unknown(
    kind: str, name: object, known: Iterable[str], where: str = "", meant: Sequence[str] = ()
) -> CounterpoiseError:
    """The error for an unknown name. It suggests the names in `meant`, or else the closest known name.

    >>> str(unknown("method", "fedpox", ["fedavg", "fedprox"]))
    "There is no method 'fedpox'. Did you mean 'fedprox'? Known: fedavg, fedprox."
    """
    known = sorted(known)
    near = list(meant[:3]) or difflib.get_close_matches(str(name)[:_SHOWN], known, n=1)
    near = near or [longer for longer in known if name and longer.startswith(str(name))][:1]
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    place = f" {where}" if where else ""
    return CounterpoiseError(f"There is no {kind} {brief(str(name))}{place}.{hint} Known: {', '.join(known)}.")


def takes_only_its_options(meant: Mapping[str, str] | None = None) -> Callable[[Made], Made]:
    """Make a function or dataclass refuse unknown arguments in plain words; `meant` maps some to where they belong."""

    def guarded(made: Made) -> Made:
        signature, name = inspect.signature(made), made.__name__
        call = made.__init__ if isinstance(made, type) else made  # type: ignore[misc]

        @functools.wraps(call)
        def checked(*given: Any, **named: Any) -> Any:
            for option in named:
                if option not in signature.parameters:
                    there = [(meant or {})[option]] if option in (meant or {}) else ()
                    raise unknown("option", option, signature.parameters, f"of {name}", there)
            try:
                signature.bind(*given[isinstance(made, type) :], **named)
            except TypeError as error:
                raise CounterpoiseError(f"{name}: {error}.") from None
            return call(*given, **named)

        if not isinstance(made, type):
            return checked  # type: ignore[return-value]
        made.__init__ = checked  # type: ignore[misc]
        return made

    return guarded
