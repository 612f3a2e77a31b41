"""Signatures as a person writes them: what `help` and a notebook show of a function's arguments."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any

__all__ = ["kind_in_words", "readable"]


class _Word(str):
    """An annotation that is shown without quotes."""

    def __repr__(self) -> str:
        return str(self)


def readable(signature: inspect.Signature, kinds: Mapping[str, str] | None = None) -> inspect.Signature:
    """The signature with plain words for its annotations; `kinds` replaces some of them.

    >>> def scaled(x: float, by: Annotated[int, 'how often'] = 2) -> float | None: ...
    >>> print(readable(inspect.signature(scaled), {"by": "int"}))
    (x: float, by: int = 2) -> float | None
    """
    parameters = [
        p.replace(annotation=_word((kinds or {}).get(p.name, p.annotation))) for p in signature.parameters.values()
    ]
    return signature.replace(parameters=parameters, return_annotation=_word(signature.return_annotation))


def _word(annotation: Any) -> Any:
    return _Word(annotation) if isinstance(annotation, str) else annotation


def kind_in_words(kind: Any) -> str:
    """A type as it is written in Python.

    >>> kind_in_words(float), kind_in_words(int | None), kind_in_words(typing.Literal["a", "b"] | None)
    ('float', 'int | None', "Literal['a', 'b'] | None")
    """
    if kind is type(None):
        return "None"
    if isinstance(kind, type):
        return kind.__name__
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return " | ".join(map(kind_in_words, typing.get_args(kind)))
    return str(kind).replace("typing.", "")
