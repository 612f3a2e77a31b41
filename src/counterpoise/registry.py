"""Named things a user can choose: methods, models, partitions, optimisers, schedules.

A factory is registered once, with a sentence about it and an `Option` on each parameter. The listing,
the documentation, the checks on every call and the description in a run's folder all come from there.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, ParamSpec, TypeVar, Union

from counterpoise.errors import CounterpoiseError, brief, unknown
from counterpoise.signatures import kind_in_words, readable

__all__ = ["Entry", "Option", "Paper", "Registry", "Spec", "flatten"]

P = ParamSpec("P")
T = TypeVar("T")

_MOST_AROUND = 8
"""How many entries a name may wrap around another."""
_LARGEST = 2**53
"""A whole number beyond this is taken for a mistake: a float cannot tell it from its neighbours."""


@dataclass(frozen=True)
class Paper:
    """Where a method was published."""

    title: str
    authors: str
    year: int | None = None
    link: str = ""

    def __str__(self) -> str:
        return f"{self.authors}, {self.title}" + (f" ({self.year})" if self.year else "")


@dataclass(frozen=True)
class Option:
    """What a parameter means and which numbers it takes; `above` and `below` exclude the bound."""

    meaning: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None

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
class Spec:
    """How a value was made: the factory's name and its options, with the defaults filled in."""

    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As a plain dictionary for a configuration file; options that are None are left out."""
        options = {k: v.spec.plain() if hasattr(v, "spec") else v for k, v in self.options.items()}
        return {"name": self.name} | {k: v for k, v in options.items() if v is not None}


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one flat table, with dots between the names.

    >>> flatten({"rounds": 3, "method": {"name": "fedprox", "mu": 0.1}})
    {'rounds': 3, 'method.name': 'fedprox', 'method.mu': 0.1}
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


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

    def check(self, value: Any, owner: str) -> Any:
        checked = _coerce(self.type, value, self.option)
        if checked is _REFUSED:
            large = isinstance(value, numbers.Real) and _beyond(value, _LARGEST) and "whole" in self.kind()
            most = f" (numbers over {_LARGEST} are taken for a mistake)" if large else ""
            raise CounterpoiseError(f"{owner}: option {self.name} must be {self.kind()}, not {brief(value)}{most}.")
        return checked


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered factory and what is known about it."""

    name: str
    summary: str
    factory: Callable[..., T]
    parameters: Mapping[str, Parameter]
    group: str = ""
    paper: Paper | None = None
    wraps: str = ""
    """The parameter that takes another entry's value: ``feddua:fedprox`` is feddua around fedprox."""

    def check(self, owner: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Check every option and fill in the defaults. An error names the option at fault."""
        for name in options:
            if name not in self.parameters:
                if not self.parameters:
                    raise CounterpoiseError(f"{owner} takes no options, but was given {name}.")
                raise unknown("option", name, self.parameters, f"of {owner}")
        missing = [p.name for p in self.parameters.values() if p.required and p.name not in options]
        if missing:
            raise CounterpoiseError(
                f"{owner} needs the option {missing[0]}: {self.parameters[missing[0]].option.meaning}."
            )
        return {
            p.name: p.check(options[p.name], owner) if p.name in options else p.default
            for p in self.parameters.values()
        }


class Registry(Generic[T]):
    """The named factories of one kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry[T]] = {}

    def register(
        self, name: str, *, group: str = "", paper: Paper | None = None, wraps: str = ""
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Register a factory. The first line of its docstring becomes its summary; the parameters that
        carry an `Option` become its options. `wraps` names the parameter that takes another value of
        this registry, or that value's name.
        """

        def enter(factory: Callable[P, T]) -> Callable[P, T]:
            hints = typing.get_type_hints(factory, include_extras=True)
            signature = inspect.signature(factory)
            parameters = {}
            for parameter in signature.parameters.values():
                hint = hints[parameter.name]
                option = next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Option)), None)
                if option is not None:
                    bare = typing.get_args(hint)[0]
                    parameters[parameter.name] = Parameter(parameter.name, bare, parameter.default, option)

            @functools.wraps(factory)
            def checked(*args: P.args, **kwargs: P.kwargs) -> T:
                if len(args) > len(signature.parameters):
                    raise CounterpoiseError(
                        f"{self.kind} {name} takes at most {len(signature.parameters)} values, but got {len(args)}."
                    )
                placed = signature.bind_partial(*args).arguments
                if twice := placed.keys() & kwargs.keys():
                    raise CounterpoiseError(f"{self.kind} {name}: option {min(twice)} is given twice.")
                given = placed | kwargs
                facts = {k: given[k] for k in given.keys() & (signature.parameters.keys() - parameters)}
                options = entry.check(f"{self.kind} {name}", {k: given[k] for k in given.keys() - facts})
                needed = {k for k, p in signature.parameters.items() if p.default is p.empty} - {*facts, *options}
                if needed:
                    raise CounterpoiseError(
                        f"{self.kind} {name} also needs {' and '.join(sorted(needed))}. To set its options only, "
                        f"pass functools.partial({name}, ...) with them."
                    )
                spec = Spec(name, options)
                if wraps:
                    inner: Any = facts.get(wraps, signature.parameters[wraps].default)
                    inner = facts[wraps] = self.make(inner) if isinstance(inner, str) else inner
                    if not hasattr(inner, "spec"):
                        raise CounterpoiseError(
                            f"{self.kind} {name} wraps a {self.kind} or the name of one, not {brief(inner)}. "
                            "Was a function given without its parentheses?"
                        )
                    # The spec stays empty if it could not make the value again: a user's own value has no name, and an
                    # option of the outer entry hides the inner entry's option of the same name.
                    known = Spec(f"{name}:{inner.spec.name}", {**inner.spec.options, **options})
                    hidden = {k: v for k, v in inner.spec.options.items() if k in parameters}
                    lost = any(v != self[inner.spec.name].parameters[k].default for k, v in hidden.items())
                    spec = known if inner.spec.name and not lost else Spec()
                return _remember(factory(**facts, **options), spec)  # type: ignore[call-arg]

            kinds = {name: kind_in_words(parameter.type) for name, parameter in parameters.items()}
            checked.__signature__ = readable(signature, kinds)  # type: ignore[attr-defined]
            text = inspect.getdoc(factory) or ""
            meanings = "".join(f"\n    {p.name}: {p.option.meaning} ({p.kind()})" for p in parameters.values())
            checked.__doc__ = f"{text}\n\nOptions:{meanings}" if meanings else text
            summary = text.partition("\n")[0]
            entry = self._entries[name] = Entry(name, summary, checked, parameters, group, paper, wraps)
            return checked

        return enter

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(self._entries.values())

    def __getitem__(self, name: str) -> Entry[T]:
        if (around := name.count(":")) > _MOST_AROUND:
            raise CounterpoiseError(
                f"The {self.kind} {brief(name)} wraps {around} entries around one; at most {_MOST_AROUND} are allowed."
            )
        outer, colon, inner = name.partition(":")
        if outer not in self._entries:
            raise unknown(self.kind, outer, self._entries)
        entry = self._entries[outer]
        return _wrap(entry, self[inner]) if colon else entry

    def make(self, name: str, /, **options: Any) -> T:
        """Make the value that is registered as `name`.

        >>> from counterpoise.methods import METHODS
        >>> METHODS.make("fedprox", mu=-1)
        Traceback (most recent call last):
        ...
        counterpoise.errors.CounterpoiseError: method fedprox: option mu must be a number at least 0, not -1.
        """
        return self[name].factory(**options)


def _wrap(outer: Entry[T], inner: Entry[T]) -> Entry[T]:
    """One entry wrapped around another, with the options of both; the outer one gets any name they share."""
    name = f"{outer.name}:{inner.name}"
    if not outer.wraps:
        raise CounterpoiseError(f"{outer.name} cannot wrap another one, as in {name}.")

    def factory(**options: Any) -> T:
        own = {k: v for k, v in options.items() if k in outer.parameters}
        rest = {k: v for k, v in options.items() if k not in outer.parameters}
        return outer.factory(**{outer.wraps: inner.factory(**rest)}, **own)

    parameters = {**inner.parameters, **outer.parameters}
    return Entry(name, outer.summary, factory, parameters, outer.group, outer.paper, outer.wraps)


def _remember(value: T, spec: Spec) -> T:
    """Keep the spec on a value that has a place for it; a function always does."""
    if hasattr(value, "spec") or isinstance(value, types.FunctionType):
        object.__setattr__(value, "spec", spec)
    return value


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
