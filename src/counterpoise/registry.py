"""Named things a user can choose: methods, models, partitions, optimisers, schedules.

A factory is registered once, with a sentence about it and an `Option` on each parameter. The listing,
the documentation, the checks on every call and the description in a run's folder all come from there.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, get_args

from counterpoise.adopting import adopted
from counterpoise.choices import parse_choice
from counterpoise.errors import CounterpoiseError, brief, unknown
from counterpoise.options import Option, Parameter, declared
from counterpoise.own import TAKEN, folder_of, is_there, load, modules_like, own_part, respelt
from counterpoise.signatures import kind_in_words, readable

__all__ = ["Entry", "Option", "Paper", "Parameter", "Registry", "Spec", "flatten"]

P = ParamSpec("P")
T = TypeVar("T")

_MOST_AROUND = 8
"""How many entries a name may wrap around another."""


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
            meaning = self.parameters[missing[0]].option.meaning
            told = f": {meaning}" if meaning != missing[0] else ""
            raise CounterpoiseError(f"{owner} needs the option {missing[0]}{told}.")
        return {
            p.name: p.check(options[p.name], owner) if p.name in options else p.default
            for p in self.parameters.values()
        }


class Registry(Generic[T]):
    """The named factories of one kind."""

    def __init__(self, kind: str, makes: type | None = None, called: str = "", facts: tuple[str, ...] = ()) -> None:
        """For a user's own factories: `makes` is the type they return, and `facts` are arguments that are no options.

        If `called` says how a value is called, such as ``loss(outputs, targets)``, the user's own is such a function
        itself, and its other parameters are its options.
        """
        self.kind, self.makes, self.called, self.facts = kind, makes, called, facts
        self._entries: dict[str, Entry[T]] = {}
        self._own: dict[tuple[str, Path], Entry[T]] = {}

    def register(
        self, name: str, *, group: str = "", paper: Paper | None = None, wraps: str = ""
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Register a factory. The first line of its docstring becomes its summary; the parameters that
        carry an `Option` become its options. `wraps` names the parameter that takes another value of
        this registry, or that value's name.
        """

        def enter(factory: Callable[P, T]) -> Callable[P, T]:
            TAKEN.add(name)
            self._entries[name] = self._entry(name, factory, declared(factory), group, paper, wraps)
            return self._entries[name].factory

        return enter

    def _entry(
        self,
        name: str,
        factory: Callable[..., T],
        parameters: Mapping[str, Parameter],
        group: str = "",
        paper: Paper | None = None,
        wraps: str = "",
    ) -> Entry[T]:
        """An entry whose factory checks its options and leaves a spec on what it makes."""
        signature = inspect.signature(factory)

        @functools.wraps(factory)
        def checked(*args: Any, **kwargs: Any) -> T:
            if len(args) > len(signature.parameters):
                raise CounterpoiseError(
                    f"{self.kind} {name} takes at most {len(signature.parameters)} values, but got {len(args)}."
                )
            placed = signature.bind_partial(*args).arguments
            if twice := placed.keys() & kwargs.keys():
                raise CounterpoiseError(f"{self.kind} {name}: option {min(twice)} is given twice.")
            given = placed | kwargs
            kinds = {kind for p in parameters.values() for kind in get_args(p.type) or [p.type]}
            if not wraps and self.makes and self.makes not in kinds and any(isinstance(v, self.makes) for v in args):
                raise self._cannot_wrap(name)
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
                inner = facts[wraps] = self._named(inner) if isinstance(inner, str) else inner
                spec = self._around(entry, inner, options)
            return _remember(factory(**facts, **options), spec)

        kinds = {name: kind_in_words(parameter.type) for name, parameter in parameters.items()}
        checked.__signature__ = readable(signature, kinds)  # type: ignore[attr-defined]
        text = inspect.getdoc(factory) or ""
        meanings = "".join(f"\n    {p.name}: {p.about()}" for p in parameters.values())
        checked.__doc__ = f"{text}\n\nOptions:{meanings}" if meanings else text
        entry = Entry(name, text.partition("\n")[0], checked, parameters, group, paper, wraps)
        return entry

    def _around(self, outer: Entry[T], inner: Any, options: Mapping[str, Any]) -> Spec:
        """The spec of an entry around another value.

        It stays empty if it could not make the value again: a user's own value has no name, and an option of the outer
        entry hides the inner entry's option of the same name.
        """
        if not hasattr(inner, "spec"):
            raise CounterpoiseError(
                f"{self.kind} {outer.name} wraps a {self.kind} or the name of one, not {brief(inner)}. "
                "Was a function given without its parentheses?"
            )
        known = Spec(f"{outer.name}:{inner.spec.name}", {**inner.spec.options, **options})
        hidden = {k: v for k, v in inner.spec.options.items() if k in outer.parameters}
        lost = any(v != self[inner.spec.name].parameters[k].default for k, v in hidden.items())
        return known if inner.spec.name and not lost else Spec()

    def _named(self, text: str) -> T:
        """Make what a text names, with options in brackets."""
        chosen = parse_choice(text)
        return self.make(chosen.pop("name"), **chosen)

    def _cannot_wrap(self, name: str, where: str = "") -> CounterpoiseError:
        able = ", ".join(entry.name for entry in self if entry.wraps)
        others = f" These can: {able}. In Python, `replacing` puts a part of one into another." if able else ""
        return CounterpoiseError(f"{name} cannot wrap another {self.kind}{where}.{others}")

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(self._entries.values())

    def __getitem__(self, name: str) -> Entry[T]:
        if (around := name.count(":")) > _MOST_AROUND:
            raise CounterpoiseError(
                f"The {self.kind} {brief(name)} wraps {around} entries around one; at most {_MOST_AROUND} are allowed."
            )
        outer, colon, inner = name.partition(":")
        if colon and outer not in self._entries:
            return self._own_entry(name)
        if outer not in self._entries:
            raise unknown(self.kind, outer, self._entries, meant=respelt(outer))
        entry = self._entries[outer]
        if colon and not entry.wraps:
            raise self._cannot_wrap(outer, f", as in {name}")
        return _wrap(entry, self[inner]) if colon else entry

    def _own_entry(self, name: str) -> Entry[T]:
        """The entry of a user's own factory, imported if the user gave its name."""
        module = name.partition(":")[0]
        if own_part(name) != name:
            if module in TAKEN or not own_part(f"{module}:it"):
                meant = respelt(name)
                example = "" if meant else "(your own is named as in my_project.rules:ours)"
                raise unknown(self.kind, name if meant else module, self._entries, example, meant)
            raise CounterpoiseError(f"{brief(name)} is not a name such as my_project.rules:ours.")
        if (folder := folder_of(name)) is None:
            if "." not in module:
                raise unknown(self.kind, module, self._entries)
            raise CounterpoiseError(
                f"The {self.kind} {name} is code that you did not name, so it was not imported. In Python, import it "
                f"and pass the object itself: from {module} import {name.partition(':')[2]}"
            )
        if "." not in module and not is_there(module, folder):
            near = [f"{one}:{name.partition(':')[2]}" for one in modules_like(module, folder)]
            raise unknown(self.kind, module, self._entries, f"and no module {module} in {folder}", near)
        if (name, folder) not in self._own:
            found = adopted(load(name), f"{self.kind} {name}", folder, self.makes, self.called, self.facts)
            self._own[name, folder] = self._entry(name, *found)
        return self._own[name, folder]

    def entry_of(self, factory: object) -> Entry[T] | None:
        """The entry that has this factory."""
        return next((one for one in (*self, *self._own.values()) if one.factory is factory), None)

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
