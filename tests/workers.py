"""Comparisons and studies without worker processes: to start one takes longer than small runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from counterpoise.comparisons import perform
from counterpoise.comparisons.conduct import News
from counterpoise.comparisons.worker import work


def conduct(folder: Path, pieces: Sequence[Any], seats: Any, tell: Any, lock: Any, together: Any, warn: Any) -> None:
    """Run pieces in this process."""

    def hear(piece: int, memory: int = 0, **news: Any) -> None:
        tell(News(pieces[piece], **news))

    work([{"folder": str(folder / piece.place), "values": piece.values} for piece in pieces], together, hear)


@contextlib.contextmanager
def in_this_process() -> Iterator[None]:
    """In here, no worker is started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(perform, "conduct", conduct)
        yield
