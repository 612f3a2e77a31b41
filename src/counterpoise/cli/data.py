"""`counterpoise data`: which data sets exist, where their files are, and what they look like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.completing import complete_data_set
from counterpoise.loading import loading

__all__ = ["data"]

data = typer.Typer(no_args_is_help=True, suggest_commands=False, help="List, fetch, find and show data sets.")

_LABEL = "The column of a table that holds the labels; for folders of pictures within folders: inner or outer."
Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]


@data.command("list")
def list_(as_json: Json = False) -> None:
    """List every data set: what it is, its licence, where it comes from, and whether it is on this machine.

    Example: `counterpoise data list`
    """
    with loading():
        from counterpoise.cli.datasets import list_all

    list_all(as_json)


@data.command()
def get(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Data sets, or `all`.", autocompletion=complete_data_set),
    ],
) -> None:
    """Download data sets into the local data folder; those already there are left unchanged.

    Example: `counterpoise data get mnist fashion-mnist`
    """
    from counterpoise.cli.datasets import bring

    bring(names)


@data.command()
def where(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A data set.", autocompletion=complete_data_set)
    ] = None,
) -> None:
    """Print the path of the local data folder, or of a data set in it.

    Example: `counterpoise data where cifar10`
    """
    with loading():
        from counterpoise.cli.datasets import locate

    locate(name)


@data.command()
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE|DIR",
            help="A data set, or a file or folder of your own.",
            autocompletion=complete_data_set,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.png", help="Write a picture with ten samples of each of ten labels."),
    ] = None,
    label: Annotated[str | None, typer.Option("--label", metavar="COLUMN", help=_LABEL)] = None,
    inputs: Annotated[
        str | None,
        typer.Option("--inputs", metavar="COLUMN,...", help="Its columns of inputs; by default all others."),
    ] = None,
    resize: Annotated[
        int | None,
        typer.Option("--resize", metavar="PIXELS", help="Bring pictures of a folder to this height and width."),
    ] = None,
) -> None:
    """Show what a data set holds: sizes, labels, and a few samples in the terminal or as a PNG file.

    Example: `counterpoise data show fashion-mnist --out samples.png`
    """
    with loading():
        from counterpoise.cli.datasets import draw
    columns = {"targets": label, "inputs": inputs and inputs.split(",")}
    draw(name, out, {what: given for what, given in columns.items() if given}, resize)
