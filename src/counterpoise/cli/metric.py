"""`--metric`: what runs are compared by. It only reads records; no run stores it."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Metric"]

Metric = Annotated[
    str,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="Any metric that the runs measure, such as loss or personal_accuracy "
        "[default: accuracy; without a test set, that on the clients' held-out data].",
    ),
]
