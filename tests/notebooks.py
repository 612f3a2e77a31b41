"""A pretended notebook: a kernel that notes what its cells display."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest


class Notebook:
    """What was displayed, in order: HTML and text of every output and of every update."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kernel: bool = True) -> None:
        self.outputs = 0
        self.html: list[str] = []
        self.text: list[str] = []
        ipython, inner = types.ModuleType("IPython"), types.ModuleType("IPython.display")
        ipython.get_ipython = lambda: types.SimpleNamespace(**({"kernel": object()} if kernel else {}))  # type: ignore[attr-defined]
        inner.display = self._display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", inner)

    def _display(self, shown: Any, display_id: bool = False) -> Any:
        assert display_id
        self.outputs += 1
        self.update(shown)
        return self

    def update(self, shown: Any) -> None:
        self.html.append(shown._repr_html_())
        self.text.append(repr(shown))
