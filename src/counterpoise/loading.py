"""A note while torch is loaded, which takes seconds."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from counterpoise.screens import Panel, in_notebook, on_terminal

__all__ = ["noting_torch"]

_NOTE = "loading torch ..."


class _Watch:
    """A finder of modules that finds none. It shows the note when torch is looked for."""

    def __init__(self) -> None:
        self.erase: Callable[[], object] = lambda: None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "torch":
            self.erase = _show()


@contextlib.contextmanager
def noting_torch() -> Iterator[None]:
    """If the block loads torch, say so meanwhile on a terminal or in a notebook; in a pipe, say nothing."""
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


def _show() -> Callable[[], object]:
    """Show the note, and return what erases it."""
    if in_notebook():
        panel = Panel(_NOTE, _NOTE)
        return lambda: panel.show("", "")
    if on_terminal() and "RANK" not in os.environ:  # the ranks of one run would write over each other
        _write(_NOTE)
        return lambda: _write("\r" + " " * len(_NOTE) + "\r")
    return lambda: None


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
