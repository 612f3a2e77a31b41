"""A console that cannot be steered by what it prints.

Kept files, labels, paths and reasons may contain text that somebody else wrote, and a terminal would obey an escape
sequence in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from counterpoise.texts import clean

__all__ = ["Console"]


class Console(rich.console.Console):
    """Rich's console. Styles and controls still become escape sequences; text cannot contain any.

    It prints text in a notebook, too, where Rich's own console would make an output of everything.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(force_jupyter=False, emoji=False, **settings)  # `feddua:new:mine` is a name

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text), segment.style)
