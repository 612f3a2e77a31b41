"""Where a person may be watching: a terminal, or a notebook."""

from __future__ import annotations

import sys
import threading

from counterpoise.errors import CounterpoiseError, brief

__all__ = ["Panel", "in_notebook", "on_terminal", "watching"]


def on_terminal() -> bool:
    """Whether standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel. IPython in a terminal is none."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def watching(progress: bool | None) -> bool:
    """Whether to show progress: as the user says; by default if a person watches this thread in a terminal or notebook."""
    if progress is not None and not isinstance(progress, bool):
        raise CounterpoiseError(
            "progress must be True, False or None, which shows it in a terminal and in a notebook, "
            f"not {brief(progress)}."
        )
    if progress is not None:
        return progress
    return (in_notebook() or on_terminal()) and threading.current_thread() is threading.main_thread()


class Panel:
    """An output below a notebook's cell that can be replaced: HTML, and the same as text for those who show no HTML."""

    def __init__(self, html: str, text: str) -> None:
        from IPython.display import display

        self._handle = display(_Shown(html, text), display_id=True)  # type: ignore[no-untyped-call]

    def show(self, html: str, text: str) -> None:
        """Replace what is shown."""
        self._handle.update(_Shown(html, text))


class _Shown:
    def __init__(self, html: str, text: str) -> None:
        self._html, self._text = html, text

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html
