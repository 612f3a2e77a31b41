"""Errors written for people: what went wrong, where, and what to do about it."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from counterpoise.blame import own_frames
from counterpoise.signatures import readable

__all__ = [
    "DEBUG",
    "SYNONYMS",
    "CounterpoiseError",
    "Diverged",
    "Failed",
    "Interrupted",
    "brief",
    "can_take",
    "changed",
    "check_call",
    "guard",
    "like_named",
    "no_file",
    "no_folder",
    "takes_only_its_options",
    "unknown",
]

Made = TypeVar("Made", bound=Callable[..., Any])

SYNONYMS = {"learning_rate": "lr"}
"""Names that other libraries use, and ours."""
DEBUG = "COUNTERPOISE_DEBUG"
"""If this variable of the environment is set, errors come with their whole tracebacks."""
_FEW = 12
"""Beside a suggestion, the other names are listed if there are at most this many."""
_MANY = 40
"""A list of more names than this fills a terminal."""
_ABOUT = 0.05
"""Names whose likeness to the one given differs by less than this are equally near."""
_SHOWN = 200
"""The most characters of a value that an error shows."""


class CounterpoiseError(ValueError):
    """A mistake that the reader can fix. The message says everything; no traceback is needed."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the sentence alone, after the traceback of the user's own code if that raised."""
        cause = traceback.format_exception(self.__cause__) if self.__cause__ is not None else []
        return [*cause, "\n".join([f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ())])]


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

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows instead of a traceback: the sentence alone."""
        return [f"Interrupted: {self}"]


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


def changed(key: str, before: object, now: object) -> str:
    """A setting that differs, in words.

    >>> changed("lr", 0.1, 0.2), changed("stop.above", None, 0.9)
    ('lr was 0.1 and is 0.2', 'stop.above was not set and is 0.9')
    """
    was, is_now = ("not set" if value is None else brief(value) for value in (before, now))
    return f"{key} was {was} and is {is_now}"


def unknown(
    kind: str, name: object, known: Iterable[str], where: str = "", meant: Sequence[str] = (), listing: str = ""
) -> CounterpoiseError:
    """The error for an unknown name. It suggests the names in `meant`, or else the nearest known names.

    With a suggestion, it also lists the other names if they are few. Without one, it lists all known names, or gives the
    command that does (`listing`). Names with a comma are quoted in a list.

    >>> str(unknown("method", "fedpox", ["fedavg", "fedprox"]))
    "There is no method 'fedpox'. Did you mean 'fedprox'? Others: fedavg."
    >>> str(unknown("method", "zzz", ["fedavg", "fedprox"]))
    "There is no method 'zzz'. Known: fedavg, fedprox."
    """
    known = sorted(known)
    near = list(meant[:3]) or [SYNONYMS[name] for name in [str(name)] if SYNONYMS.get(name) in known]
    near = near or _nearest(str(name)[:_SHOWN], known)
    near = near or [longer for longer in known if name and longer.startswith(str(name))][:3]
    others = [one for one in known if one not in near]
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    shown = [repr(one) if "," in one else one for one in others]
    if not near and listing:
        hint = f" {listing} lists them."
    elif not near:
        more = f" and {len(others) - _MANY} more" if len(others) > _MANY else ""
        hint = f" Known: {', '.join(shown[:_MANY])}{more}."
    elif 0 < len(others) <= _FEW:
        hint += f" Others: {', '.join(shown)}."
    place = f" {where}" if where else ""
    return CounterpoiseError(f"There is no {kind} {brief(str(name))}{place}.{hint}")


def no_file(path: str | Path) -> CounterpoiseError:
    """The error for a file that does not exist, with the nearest name in its folder that ends alike."""
    return CounterpoiseError(f"There is no file {path}." + _instead(like_named(path)))


def no_folder(path: str | Path) -> CounterpoiseError:
    """The error for a folder that does not exist, with the nearest name beside it."""
    return CounterpoiseError(f"There is no folder {path}." + _instead(like_named(path)))


def like_named(path: str | Path, suffix: str | None = None, any_kind: bool = False) -> list[str]:
    """The files beside a path, or if it has no suffix the folders, whose names are most like its own.

    With `any_kind`, files and folders with any suffix, but none that are hidden.
    """
    path = Path(path)
    suffix = path.suffix if suffix is None else suffix

    def fits(one: Path) -> bool:
        return one.name[0] != "." if any_kind else one.suffix == suffix if suffix else one.is_dir()

    try:
        beside = [one for one in path.parent.iterdir() if fits(one)]
    except (OSError, ValueError):  # a name with a null character is a ValueError
        return []
    return [str(path.parent / name) for name in _nearest(path.name, sorted(one.name for one in beside))]


def _instead(near: Sequence[str]) -> str:
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _nearest(name: str, known: Sequence[str]) -> list[str]:
    """The known name most like this one, and up to two that are about as like it."""
    close = difflib.get_close_matches(name, known, n=3)
    alike = [difflib.SequenceMatcher(None, one, name).ratio() for one in close]
    return [one for one, ratio in zip(close, alike, strict=True) if ratio >= alike[0] - _ABOUT]


def can_take(function: Callable[..., Any], values: int) -> bool:
    """Whether a function can be called with this many values; assumed if it has no signature, like some C functions.

    >>> can_take(lambda client, step: step, 2), can_take(lambda client: client, 2)
    (True, False)
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    return _mismatch(signature, range(values), {}) is None


def check_call(given: object, called: str, owner: str) -> None:
    """Refuse what cannot be called as ``called``, such as ``loss(client, step, w)``."""
    name, _, takes = called.partition("(")
    if not callable(given):
        raise CounterpoiseError(f"{owner}: {name} must be a function {called}, not {brief(given)}.")
    if not can_take(given, takes.count(",") + 1):
        raise CounterpoiseError(
            f"{owner}: {name} is called as {called}, but the function given takes {inspect.signature(given)}."
        )


def takes_only_its_options(meant: Mapping[str, str] | None = None) -> Callable[[Made], Made]:
    """Make a function or dataclass refuse unknown arguments in plain words; `meant` maps some to where they belong.

    For a required argument, `meant` may hold a sentence of advice, which is given if it is missing. Only calls that
    Python has refused are checked, so a good call costs nothing.
    """

    def guarded(made: Made) -> Made:
        call = made.__init__ if isinstance(made, type) else made  # type: ignore[misc]
        signature, name = inspect.signature(call), made.__name__
        known = signature.parameters.keys() - {"self", "cls"}
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())

        @functools.wraps(call)
        def checked(*given: Any, **named: Any) -> Any:
            try:
                return call(*given, **named)
            except TypeError:
                why = _mismatch(signature, given, named)
                if why is None:
                    raise
                strange = next((option for option in named if option not in known), None)
                if strange is None or takes_any:
                    advice = next((f" {text}" for option, text in (meant or {}).items() if f"'{option}'" in why), "")
                    raise CounterpoiseError(f"{name}: {why}.{advice}") from None
                there = [(meant or {})[strange]] if strange in (meant or {}) else ()
                raise unknown("option", strange, known, f"of {name}", there) from None

        checked.__signature__ = readable(signature)  # type: ignore[attr-defined]
        if not isinstance(made, type):
            return checked  # type: ignore[return-value]
        made.__init__ = checked  # type: ignore[misc]
        return made

    return guarded


def guard(room: str) -> None:
    """Make every function that a package exports refuse unknown arguments in plain words."""
    package = sys.modules[room]
    for name in package.__all__:
        function = getattr(package, name)
        if inspect.isfunction(function):
            checked = takes_only_its_options()(function)
            for place in (package, sys.modules[function.__module__]):  # in both, or it could not be pickled
                setattr(place, name, checked)


def _mismatch(signature: inspect.Signature, given: Sequence[Any], named: Mapping[str, Any]) -> str | None:
    """Why a function cannot be called with these arguments, in Python's words; None if it can."""
    try:
        signature.bind(*given, **named)
    except TypeError as error:
        return str(error)
    return None


def _show_briefly(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an error that ends a script: ours as a sentence, after the lines of the user's own code that led to it."""
    if not isinstance(error, CounterpoiseError | Interrupted) or os.environ.get(DEBUG):
        return sys.__excepthook__(kind, error, trace)
    frames = own_frames(error) + (own_frames(error.__cause__) if error.__cause__ is not None else [])
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    print("".join(lines) + "\n".join([f"{kind.__name__}: {error}", *getattr(error, "__notes__", ())]), file=sys.stderr)


if sys.excepthook is sys.__excepthook__:  # otherwise somebody else shows errors, such as a debugger
    sys.excepthook = _show_briefly
