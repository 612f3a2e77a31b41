"""Load modules quickly, and say so meanwhile if they are slow ones: torch takes seconds."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from counterpoise.screens import Panel, in_notebook, on_terminal

__all__ = ["loading", "noting_slow"]

_SLOW = ("torch", "scipy", "pydantic")


class _Watch:
    """A module finder that finds nothing, but shows a note when Python looks for a slow module."""

    def __init__(self) -> None:
        self.erase: Callable[[], object] = lambda: None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in _SLOW:
            self.erase()
            self.erase = _show(f"loading {name} ...")


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Load a command's modules quickly, with a note about slow ones.

    The modules loaded here stay until the end, so the garbage collector need not look through their many objects: not
    while they are loaded, not in the rounds, and not at the end.
    """
    if "torch" in sys.modules:  # the user's own program loaded it, and its objects need not stay
        yield
        return
    gc.disable()
    try:
        with noting_slow():
            yield
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def noting_slow() -> Iterator[None]:
    """If the block loads a slow package, say so meanwhile on a terminal or in a notebook; in a pipe, say nothing."""
    if "torch" in sys.modules or any(isinstance(finder, _Watch) for finder in sys.meta_path):
        yield
        return
    watch = _Watch()
    sys.meta_path.insert(0, watch)
    try:
        yield
    finally:
        sys.meta_path.remove(watch)
        watch.erase()


def _show(note: str) -> Callable[[], object]:
    """Show a note, and return what erases it."""
    if in_notebook():
        panel = Panel(note, note)
        return lambda: panel.show("", "")
    if on_terminal() and "RANK" not in os.environ:  # the ranks of one run would write over each other
        _write(note)
        return lambda: _write("\r" + " " * len(note) + "\r")
    return lambda: None


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
