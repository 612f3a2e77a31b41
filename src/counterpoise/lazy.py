"""Names of a package that are imported when they are first used, because loading torch takes seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from counterpoise.loading import noting_slow

__all__ = ["attach"]


def attach(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The package's ``__getattr__`` and ``__dir__``, from the names that each module gives it.

    The names that the package itself gives are its own modules. No other name may be that of a module in the package,
    because Python would put the module in its place. Type checkers and editors do not run this, so a package also
    imports its names under ``TYPE_CHECKING``; a test compares the two.
    """
    home = {name: module for module, names in homes.items() for name in names.split()}
    this = sys.modules[package]

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=this)
        with noting_slow():
            if home[name] == package:
                return import_module(f"{package}.{name}")  # which also makes it an attribute
            value = getattr(import_module(home[name]), name)
        setattr(this, name, value)  # so that it is looked up once
        return value

    return find, lambda: sorted({*vars(this), *home})
