"""Options of a factory: what each means, which values it takes, and what its function's signature says of it."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import operator
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union

from counterpoise.errors import CounterpoiseError, brief

__all__ = ["Option", "Parameter", "declared", "guessed"]

_LARGEST = 2**53
"""A whole number beyond this is taken for a mistake: a float cannot tell it from its neighbours."""


@dataclass(frozen=True)
class Option:
    """What a parameter means and which numbers it takes; `above` and `below` exclude the bound."""

    meaning: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    inner: bool = False
    """Whether it is a number inside a part that nobody needs to set. Lists of options show these apart, or count them."""

    def range(self) -> str:
        """The range in words; empty if every number is allowed.

        >>> Option("momentum", low=0, below=1).range()
        'at least 0 and below 1'
        """
        bounds = [("at least", self.low), ("above", self.above), ("at most", self.high), ("below", self.below)]
        return " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)

    def allows(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
            and (self.below is None or value < self.below)
        )


@dataclass(frozen=True)
class Parameter:
    """One option of an entry, as its factory declares it."""

    name: str
    type: Any
    default: Any
    option: Option

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty

    def kind(self) -> str:
        """What the option takes, in words: 'a number at least 0', 'one of clip, soft'."""
        return _kind(self.type, self.option)

    def about(self) -> str:
        """What it means and takes, in words; an option whose author said nothing of it has its own name as meaning.

        >>> told, untold = (Parameter("mu", float, 0.1, Option(meaning)) for meaning in ("strength", "mu"))
        >>> told.about(), untold.about()
        ('strength (a number)', 'a number')
        """
        return self.kind() if self.option.meaning == self.name else f"{self.option.meaning} ({self.kind()})"

    def check(self, value: Any, owner: str) -> Any:
        checked = _coerce(self.type, value, self.option)
        if checked is _REFUSED:
            large = isinstance(value, numbers.Real) and _beyond(value, _LARGEST) and "whole" in self.kind()
            most = f" (numbers over {_LARGEST} are taken for a mistake)" if large else ""
            raise CounterpoiseError(f"{owner}: option {self.name} must be {self.kind()}, not {brief(value)}{most}.")
        return checked


_REFUSED = object()


def _members(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)


def _kind(kind: Any, option: Option) -> str:
    words = []
    for member in _members(kind):
        if typing.get_origin(member) is Literal:
            words.append("one of " + ", ".join(map(str, typing.get_args(member))))
        elif member is bool:
            words.append("true or false")
        elif member in (int, float):
            noun = "a whole number" if member is int else "a number"
            words.append(f"{noun} {option.range()}".strip())
        elif member is type(None):
            words.append("nothing")
        else:
            words.append(getattr(member, "__name__", str(member)))
    return " or ".join(words)


def _beyond(value: Any, most: float) -> bool:
    return bool(abs(value) > most)


def _coerce(kind: Any, value: Any, option: Option) -> Any:
    # Try the value's own type first: if an option takes both, 1 is a count and 1.0 is a fraction.
    for member in sorted(_members(kind), key=lambda member: member is not type(value)):
        if member is type(None) and value is None:
            return None
        if typing.get_origin(member) is Literal and value in typing.get_args(member):
            return value
        if member is bool and isinstance(value, bool):
            return value
        if member in (int, float) and isinstance(value, numbers.Real) and not isinstance(value, bool):
            if _beyond(value, sys.float_info.max):
                continue
            number = float(value)
            if member is int and (not number.is_integer() or abs(number) > _LARGEST):
                continue
            if option.allows(number):
                return number if member is float else int(value) if isinstance(value, numbers.Integral) else int(number)
        if member is str and isinstance(value, str):
            return value
        if isinstance(member, type) and member not in (bool, int, float, str) and isinstance(value, member):
            return value
    return _REFUSED


def declared(factory: Callable[..., Any]) -> dict[str, Parameter]:
    """The parameters of a function that carry an `Option`."""
    hints = typing.get_type_hints(factory, include_extras=True)
    found = {}
    for parameter in inspect.signature(factory).parameters.values():
        if (option := _option(hints[parameter.name])) is not None:
            bare = typing.get_args(hints[parameter.name])[0]
            found[parameter.name] = Parameter(parameter.name, bare, parameter.default, option)
    return found


def guessed(signature: inspect.Signature, hints: Mapping[str, Any], besides: Iterable[str]) -> dict[str, Parameter]:
    """The options of a function that its author did not write for us: all parameters but those in `besides`.

    An `Option` counts as in `declared`. Otherwise the annotation says what the option takes, or else its default does.
    """
    found = {}
    for parameter in signature.parameters.values():
        if parameter.name in besides or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        hint = hints.get(parameter.name, _like(parameter.default))
        option = _option(hint)
        bare = hint if option is None else typing.get_args(hint)[0]
        kind = functools.reduce(operator.or_, map(_plain, _members(bare)))
        found[parameter.name] = Parameter(parameter.name, kind, parameter.default, option or Option(parameter.name))
    return found


def _option(hint: Any) -> Option | None:
    return next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Option)), None)


def _like(default: Any) -> Any:
    """What an option without annotation takes, by its default: any number if that is one."""
    if isinstance(default, bool | str):
        return type(default)
    return int | float if isinstance(default, numbers.Real) else object


def _plain(kind: Any) -> Any:
    """A kind that values of TOML can be checked against: a list of anything for a list of numbers."""
    if typing.get_origin(kind) is Literal or isinstance(kind, type):
        return list if kind is tuple else kind
    origin = typing.get_origin(kind)
    return object if not isinstance(origin, type) else list if issubclass(origin, Sequence) else origin
