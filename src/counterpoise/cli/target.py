"""`--target`: report the rounds and bytes to this accuracy. It only reads records; no run stores it."""

from __future__ import annotations

from typing import Annotated

import typer

from counterpoise.errors import CounterpoiseError

__all__ = ["Target"]


def _fraction(value: float | None) -> float | None:
    if value is not None and not 0 < value <= 1:
        raise CounterpoiseError(f"--target takes an accuracy between 0 and 1, such as 0.9, not {value:g}.")
    return value


Target = Annotated[
    float | None,
    typer.Option(
        "--target", metavar="ACCURACY", callback=_fraction, help="Show rounds and bytes to this accuracy, such as 0.9."
    ),
]
