"""Something that changes while runs go on: one drawing for a terminal, a notebook and a log."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.live import Live

from counterpoise.display.console import Console
from counterpoise.screens import Panel, in_notebook, on_terminal

__all__ = ["as_html", "live", "now_and_then"]

Render = Callable[[], RenderableType]

_IN_NOTEBOOK, _IN_LOG = 0.25, 10.0
"""Seconds between two drawings."""
_WIDTH = 90
"""Characters in a line of a notebook or a log."""


@contextlib.contextmanager
def live(render: Render, leave: bool = True) -> Iterator[Callable[[], None]]:
    """Show what `render` returns while the block runs; `leave` it there afterwards.

    Yields a function to call after every change. In a log, where nothing can be replaced, it is printed now and then.
    """
    if not in_notebook() and on_terminal():
        console = Console(stderr=True)
        with Live(get_renderable=render, console=console, transient=not leave, refresh_per_second=4):
            yield lambda: None
        return
    draw = _notebook(render) if in_notebook() else _log(render)
    try:
        yield lambda: draw(False)
    finally:
        draw(True)


def as_html(renderable: RenderableType) -> tuple[str, str]:
    """What a terminal would show, as HTML for a notebook, and as text."""
    console = Console(record=True, file=io.StringIO(), width=_WIDTH, force_terminal=True, color_system="truecolor")
    console.print(renderable)
    text = console.export_text(clear=False)
    pre = "<pre style='line-height:1.3;white-space:pre;overflow-x:auto'>{code}</pre>"
    return console.export_html(inline_styles=True, code_format=pre), text


def _notebook(render: Render) -> Callable[[bool], None]:
    panel = Panel(*as_html(render()))
    return now_and_then(lambda: panel.show(*as_html(render())), _IN_NOTEBOOK)


def _log(render: Render) -> Callable[[bool], None]:
    return now_and_then(lambda: Console(file=sys.stderr, width=_WIDTH, color_system=None).print(render()), _IN_LOG)


def now_and_then(draw: Callable[[], object], seconds: float) -> Callable[[bool], None]:
    """Draw at most once in so many seconds, and when it must be."""
    last = time.monotonic()

    def drawn(must: bool) -> None:
        nonlocal last
        if must or time.monotonic() - last >= seconds:
            draw()
            last = time.monotonic()

    return drawn
