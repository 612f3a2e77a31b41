"""`counterpoise partition`: a picture of which labels each client holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.compare import Settings, Source
from counterpoise.loading import loading

__all__ = ["partition"]


def partition(
    source: Source,
    settings: Settings = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed of all random choices.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.svg", help="Write the picture to a file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")] = False,
) -> None:
    """Draw how an experiment divides its data: each client's labels and size.

    Example: `counterpoise partition quickstart --set data.partition.alpha=0.1 --out who.svg`
    """
    with loading():
        from counterpoise.cli.partitions import draw
    draw(source, settings or [], seed, out, as_json)
