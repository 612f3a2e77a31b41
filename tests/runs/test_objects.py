"""Digests of a user's own objects: equal if they do the same, different if their code or their values differ."""

from __future__ import annotations
import __future__

import functools
import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from counterpoise.runs.objects import object_digest

SCALE = 1.0


def defined(source: str, **given: Any) -> Any:
    """What a notebook's cell defines as ``it``."""
    names: dict[str, Any] = {"__name__": "__main__", "torch": torch, "nn": nn, "functools": functools, **given}
    exec(source, names)
    return names["it"]


PAIRS = {
    "a constant": ("def it(x): return x + 1", "def it(x): return x + 2"),
    "an operator": ("def it(x): return x + 1", "def it(x): return x - 1"),
    "an attribute": ("def it(x): return x.sum()", "def it(x): return x.mean()"),
    "an inner function": ("def it(x): return (lambda y: y + 1)(x)", "def it(x): return (lambda y: y + 2)(x)"),
    "a default": ("def it(x, k=1): return x", "def it(x, k=2): return x"),
    "a default by name": ("def it(x, *, k=1): return x", "def it(x, *, k=2): return x"),
    "a global": ("A = 1\ndef it(x): return A", "A = 2\ndef it(x): return A"),
    "a helper": ("def h(): return 1\ndef it(): return h()", "def h(): return 2\ndef it(): return h()"),
    "a cached helper": (
        "@functools.cache\ndef h(): return 1\ndef it(): return h()",
        "@functools.cache\ndef h(): return 2\ndef it(): return h()",
    ),
    "a class": ("class it:\n def f(self): return 1", "class it:\n def f(self): return 2"),
    "an attribute of a class": ("class it:\n f = 1", "class it:\n f = 2"),
    "a property": ("class it:\n f = property(lambda s: 1)", "class it:\n f = property(lambda s: 2)"),
    "a static method": ("class it:\n f = staticmethod(lambda: 1)", "class it:\n f = staticmethod(lambda: 2)"),
    "a base": ("class A: x = 1\nclass it(A): pass", "class A: x = 2\nclass it(A): pass"),
    "a held value": (
        "class A:\n def __init__(s, v): s.v = v\n def __call__(s): return s.v\nit = A(1)",
        "class A:\n def __init__(s, v): s.v = v\n def __call__(s): return s.v\nit = A(2)",
    ),
    "a partial": ("it = functools.partial(int, base=2)", "it = functools.partial(int, base=3)"),
    "a tensor": ("T = torch.ones(2)\nit = lambda: T", "T = torch.zeros(2)\nit = lambda: T"),
    "a layer's function": (
        "it = nn.TransformerEncoderLayer(2, 1, 2, 0.0, torch.relu).activation",
        "it = nn.TransformerEncoderLayer(2, 1, 2, 0.0, torch.tanh).activation",
    ),
    "another library's object": (
        "D = torch.distributions.Normal(0.0, 1.0)\nit = lambda: D",
        "D = torch.distributions.Normal(0.0, 2.0)\nit = lambda: D",
    ),
}


@pytest.mark.parametrize("what", PAIRS)
def test_what_differs_is_noticed_and_what_is_equal_is_not(what: str) -> None:
    one, other = PAIRS[what]
    moved = f"# a comment\n\n{one}"
    assert object_digest(defined(one)) == object_digest(defined(moved))
    assert object_digest(defined(one)) != object_digest(defined(other))


@dataclass
class Held:
    inside: object


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (np.arange(3), np.arange(3), np.arange(4)),
        ({"a": 1}, {"a": 1}, {"a": 2}),
        ({"b", "a"}, {"a", "b"}, {"a", "c"}),
        (Held([1, 2]), Held([1, 2]), Held([1, 3])),
        (Held([1]).__eq__, Held([1]).__eq__, Held([2]).__eq__),
    ],
)
def test_values_are_compared(one: object, same: object, other: object) -> None:
    assert object_digest(one) == object_digest(same) != object_digest(other)


def test_code_and_values_are_told_apart() -> None:
    ways = [defined(f"A = {value}\ndef it(x): return x {sign} A") for value in (1, 2) for sign in "+-"]
    (_, plus, one), (_, minus, _), (_, also_plus, two), _ = (object_digest(way).split() for way in ways)
    assert plus == also_plus != minus
    assert one != two


def test_a_future_import_in_another_cell_changes_nothing() -> None:
    names = [dict[str, Any](), dict[str, Any]()]
    for flags, there in zip((0, __future__.annotations.compiler_flag), names, strict=True):
        exec(compile("def it(x): return x + 1", "cell", "exec", flags=flags, dont_inherit=True), there)
    assert object_digest(names[0]["it"]) == object_digest(names[1]["it"])


def test_a_name_of_an_attribute_is_no_global() -> None:
    source = "def it(x): return x.loss"
    assert object_digest(defined(source, loss=1)) == object_digest(defined(source, loss=2))


def test_circles_end_and_libraries_are_only_named() -> None:
    loop: list[object] = []
    loop.append(loop)
    assert object_digest(loop) == object_digest(loop)
    source = "def it(n): return it(n - 1) if n else nn.Linear(2, 2)"
    assert object_digest(defined(source)) == object_digest(defined(source))
    assert object_digest(types.ModuleType("one")) != object_digest(types.ModuleType("two"))


def test_equal_tuples_may_be_one_object_or_two() -> None:
    shared, other = (1, 2), tuple([1, 2])  # noqa: C409 - a constant, and another object
    assert shared is not other
    assert object_digest([shared, shared]) == object_digest([shared, other])


def test_much_data_ends() -> None:
    assert object_digest([*range(300_000)])


def test_modules_are_compared_by_classes_settings_and_weights() -> None:
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))
    same = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))
    same.load_state_dict(one.state_dict())
    assert object_digest(one) == object_digest(same)
    same[1].p = 0.2
    assert object_digest(one) != object_digest(same)
    assert object_digest(one) != object_digest(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)))


def test_the_order_of_a_set_is_nothing() -> None:
    """0 and 8 share a place in a small set, so that the first one goes first; of texts the order is random."""
    assert [*{0, 8}] != [*{8, 0}]
    assert object_digest({0, 8}) == object_digest({8, 0})
    one, other = (defined(f"def it(x): return x in {{{both}}}") for both in ("0, 8", "8, 0"))
    assert object_digest(one) == object_digest(other)
