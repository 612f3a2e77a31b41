"""Digests of a user's own objects: of the code that they run, and of the values that this code uses.

A function that is defined in a notebook has no file. So its compiled code is digested, and comments and line numbers
change nothing. The digest also covers the functions, classes and values that the code names; of a library, only names.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import hashlib
import inspect
import itertools
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from counterpoise.engine.rounds.setup import Setup
from counterpoise.federation import Federation
from counterpoise.flat import pieces, raw_bytes
from counterpoise.runs.config import Config

__all__ = ["changed_objects", "object_digest", "object_digests", "unknown_objects"]

_MOST = 100_000
"""Digest at most this many values; beyond that they are data, not code."""
_KINDS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
"""The flags of compiled code that count. Others, such as future imports, a notebook takes over from earlier cells."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device, np.generic, Path)


def object_digests(made: Setup, names: list[str]) -> dict[str, str]:
    """The digests of a set-up's objects that are the user's own, by the names of their arguments.

    A federation and a module's weights have fingerprints instead.
    """
    training, local = made.training, made.training.local
    given = {
        "method": training.method,
        "model": _layers(training.model) if isinstance(training.model, nn.Module) else training.model,
        "loss": training.loss,
        "metrics": training.metrics,
        "cohort": made.cohort,
        "adversary": made.adversary,
        "optimizer": local.optimizer,
        "schedule": local.schedule,
        "augment": local.augment,
    }
    return {name: object_digest(given[name]) for name in names if name in given}


def changed_objects(kept: Config, made: Config) -> dict[str, str]:
    """By argument, which of the user's own objects have changed since a run was begun, and how, in words."""
    found = {}
    for name in kept.objects.keys() & made.objects.keys():
        (how, code, values), (now, *others) = kept.objects[name].split(), made.objects[name].split()
        if how == now and code != others[0]:
            found[name] = f"the code of your own {name} has changed"
        elif how == now and values != others[1]:
            found[name] = f"a value that your own {name} holds or uses has changed"
    return dict(sorted(found.items()))


def unknown_objects(kept: Config, made: Config) -> list[str]:
    """The user's own objects that cannot be compared, because the run was begun by another Python or an old version."""
    how = {name: digest.split()[0] for name, digest in kept.objects.items()}
    return [name for name, digest in made.objects.items() if digest.split()[0] != how.get(name)]


def object_digest(value: object) -> str:
    """How it was made, a digest of the code and one of the values. Only digests made in the same way are comparable.

    >>> object_digest([1, "a"]) == object_digest([1, "a"]) != object_digest([1, "b"])
    True
    """
    walk = _Walk()
    walk.visit(value)
    return f"{sys.implementation.cache_tag} {walk.code.hexdigest()[:16]} {walk.values.hexdigest()[:16]}"


class _Walk:
    """One walk over an object and all that it uses. Each thing is digested once, so that circles end."""

    def __init__(self) -> None:
        self.code, self.values = hashlib.sha256(), hashlib.sha256()
        self.seen: dict[int, tuple[int, object]] = {}
        """The number of each thing; the thing itself is held so that no other one gets its id."""
        self.left = _MOST

    def visit(self, value: Any) -> None:
        self.left -= 1
        if isinstance(value, _PLAIN):
            self._note(f"{type(value).__name__} {value!r}")
            return
        if id(value) in self.seen and not isinstance(value, tuple):  # Python may share equal tuples, or not
            self._note(f"again {self.seen[id(value)][0]}")
            return
        self.seen[id(value)] = len(self.seen), value
        follow = next((follow for kind, follow in _FOLLOWED.items() if isinstance(value, kind)), _Walk._other)
        self._note(follow.__name__)
        follow(self, value)

    def _note(self, text: str) -> None:
        self.values.update(f"{text}\n".encode(errors="surrogatepass"))

    def _all(self, values: Any) -> None:
        for value in itertools.takewhile(lambda _: self.left > 0, values):
            self.visit(value)

    def _function(self, function: types.FunctionType) -> None:
        if not _is_own(home := function.__globals__.get("__name__")):
            self.code.update(f"{home}.{function.__qualname__}\n".encode())
        else:
            self._compiled(function.__code__)
            names = sorted(_global_names(function.__code__) & function.__globals__.keys())
            self._all(function.__globals__[name] for name in names)
        self._all([function.__defaults__, function.__kwdefaults__])
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell: a name that is bound later
                self.visit(cell.cell_contents)

    def _compiled(self, code: types.CodeType) -> None:
        """Digest compiled code without its place in a file."""
        self.code.update(code.co_code)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_argcount)
        kind = code.co_flags & _KINDS
        self.code.update(repr((*names, code.co_kwonlyargcount, code.co_exceptiontable, kind)).encode())
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._compiled(constant)
            else:
                text = sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant
                self.code.update(f"{type(constant).__name__} {text!r}\n".encode(errors="surrogatepass"))

    def _class(self, kind: type) -> None:
        self.code.update(f"{kind.__qualname__}\n".encode())
        for base in kind.__mro__:
            if not _is_own(base.__module__):
                self.code.update(f"{base.__module__}.{base.__qualname__}\n".encode())
                continue
            for name, value in sorted(vars(base).items()):
                value = getattr(value, "__func__", value)  # of a class method or a static one
                hidden = name.startswith("__") and name.endswith("__")
                if not hidden or isinstance(value, types.FunctionType):
                    self.code.update(f"{name}\n".encode())
                    self.visit(value)

    def _module(self, module: types.ModuleType) -> None:
        file = getattr(module, "__file__", None)
        self.code.update(f"{module.__name__}\n".encode())
        if file and _is_own(module.__name__) and Path(file).is_file():
            self.code.update(hashlib.sha256(Path(file).read_bytes()).digest())

    def _network(self, module: nn.Module) -> None:
        self._all([*_layers(module), *module.state_dict().values()])

    def _tensor(self, tensor: torch.Tensor) -> None:
        self._note(f"{tensor.dtype} {tuple(tensor.shape)}")
        for piece in pieces(tensor.detach()):
            self.values.update(raw_bytes(piece))

    def _array(self, array: np.ndarray[Any, Any]) -> None:
        self._note(f"{array.dtype} {array.shape}")
        self._all(array.flat) if array.dtype.hasobject else self.values.update(np.ascontiguousarray(array).tobytes())

    def _mapping(self, mapping: Mapping[Any, Any]) -> None:
        self._all(part for item in mapping.items() for part in item)

    def _set(self, values: set[Any]) -> None:
        self._note(repr(sorted(map(_described, values))))

    def _partial(self, made: functools.partial[Any]) -> None:
        self._all([made.func, made.args, made.keywords])

    def _method(self, bound: types.MethodType) -> None:
        self._all([bound.__func__, bound.__self__])

    def _property(self, made: property) -> None:
        self._all([made.fget, made.fset])

    def _federation(self, federation: Federation) -> None:
        self._note(federation.fingerprint)

    def _other(self, value: object) -> None:
        """Any other object: what it wraps, its fields, or what it calls itself."""
        kind = type(value)
        if (inside := inspect.unwrap(value) if callable(value) else value) is not value:  # wrapped, such as by a cache
            self.visit(inside)
            return
        self.visit(kind)
        if is_dataclass(value):
            self._all(getattr(value, field.name) for field in fields(value))
        elif _is_own(kind.__module__) and hasattr(value, "__dict__"):
            self._mapping(vars(value))
        else:
            self._note(_described(value))


_FOLLOWED: dict[Any, Callable[[_Walk, Any], None]] = {
    types.FunctionType: _Walk._function,
    type: _Walk._class,
    types.ModuleType: _Walk._module,
    nn.Module: _Walk._network,
    torch.Tensor: _Walk._tensor,
    np.ndarray: _Walk._array,
    Mapping: _Walk._mapping,
    (list, tuple): _Walk._all,
    (set, frozenset): _Walk._set,
    functools.partial: _Walk._partial,
    types.MethodType: _Walk._method,
    property: _Walk._property,
    Federation: _Walk._federation,
}


def _layers(module: nn.Module) -> list[tuple[type, dict[str, object]]]:
    """The class of each layer and its settings: what it holds besides tensors and other layers."""
    return [
        (type(layer), {name: value for name, value in vars(layer).items() if name != "training" and name[0] != "_"})
        for layer in module.modules()
    ]


def _described(value: object) -> str:
    """What an object calls itself, without its place in memory."""
    try:
        return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):  # of another's class
        return type(value).__qualname__


def _global_names(code: types.CodeType) -> set[str]:
    """The global names that compiled code reads; names of attributes do not count."""
    return {
        str(one.argval)
        for inner in _codes(code)
        for one in dis.get_instructions(inner)
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    }


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


@functools.cache
def _is_own(module: str | None) -> bool:
    """Whether a module is the user's: neither this package nor an installed one nor Python's own."""
    top = (module or "").partition(".")[0]
    if top == "__main__":  # a notebook's file is that of its installed kernel
        return True
    if top == "counterpoise" or top in sys.stdlib_module_names:
        return False
    files = [getattr(sys.modules.get(name), "__file__", None) for name in (module or "", top)]
    file = next(filter(None, files), None)
    installed = [Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")]
    return file is None or not any(Path(file).resolve().is_relative_to(place) for place in installed)
