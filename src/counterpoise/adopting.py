"""Make a factory, with options that can be checked, of a function or class that a user wrote."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from counterpoise.errors import CounterpoiseError, brief, check_call
from counterpoise.options import Parameter, guessed
from counterpoise.own import told

__all__ = ["adopted"]


def _written(found: Any) -> Any:
    """The function that holds the annotations of a class or function."""
    return found.__init__ if inspect.isclass(found) else found


def adopted(
    found: Any, owner: str, folder: Path | None, makes: type | None, called: str, facts: Sequence[str]
) -> tuple[Callable[..., Any], dict[str, Parameter]]:
    """A factory and its options. The other arguments are those of `counterpoise.registry.Registry`."""
    if makes is not None and isinstance(found, makes):
        raise CounterpoiseError(
            f"{owner} is a {makes.__name__} itself. Name a class or a function that returns one: it is made anew for "
            "each run."
        )
    if not callable(found):
        raise CounterpoiseError(f"{owner} must be a function or a class, not {brief(found)}.")
    if called:
        check_call(found, called, owner)
    try:
        signature = inspect.signature(found)
        hints = typing.get_type_hints(_written(found), include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise CounterpoiseError(f"{owner}: its signature cannot be read: {told(error, folder)}") from error
    made = hints.get("return") if inspect.isfunction(found) else None
    if makes and isinstance(made, type) and not issubclass(made, makes) and not issubclass(makes, made):
        raise CounterpoiseError(
            f"{owner} is written to return a {made.__name__}. Name a function that returns a {makes.__name__}."
        )
    values = list(signature.parameters)[: called.count(",") + 1] if called else []
    parameters = guessed(signature, hints, {*facts, *values})

    @functools.wraps(found)
    def factory(**given: Any) -> Any:
        if called:
            return lambda *values: found(*values, **given)
        try:
            made = found(**given)
        except CounterpoiseError:
            raise
        except Exception as error:
            raise CounterpoiseError(f"{owner} failed: {told(error, folder)}") from error
        if makes is not None and not isinstance(made, makes):
            article = "an" if makes.__name__[0] in "AEIOU" else "a"
            raise CounterpoiseError(f"{owner} must return {article} {makes.__name__}, not {brief(made)}.")
        return made

    kept = [p for p in signature.parameters.values() if p.name in parameters or p.name in facts]
    named = [p.replace(kind=p.KEYWORD_ONLY) for p in kept]
    factory.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    return factory, parameters
