"""`counterpoise runs`: find runs on disk by method, data and date; show, compare and remove them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.metric import Metric
from counterpoise.cli.target import Target
from counterpoise.loading import loading

__all__ = ["runs"]

runs = typer.Typer(no_args_is_help=True, suggest_commands=False, help="List, show, compare and remove runs on disk.")

Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]
Method = Annotated[str, typer.Option("--method", metavar="NAME", help="Only runs of methods with this in their name.")]
Data = Annotated[str, typer.Option("--data", metavar="NAME", help="Only runs on data with this in its name.")]
Since = Annotated[
    str, typer.Option("--since", metavar="DATE", help="Only runs changed on this day or later: 2026-01-31.")
]
Before = Annotated[str, typer.Option("--before", metavar="DATE", help="Only runs changed before this day.")]
Folders = Annotated[list[Path] | None, typer.Argument(metavar="[DIR]...", help="Where to look [default: runs].")]


@runs.command("list")
def list_(
    folders: Folders = None,
    method: Method = "",
    data: Data = "",
    since: Since = "",
    before: Before = "",
    as_json: Json = False,
) -> None:
    """List the runs in folders, at any depth: method, data, seed, rounds, accuracy, date.

    Example: `counterpoise runs list --method fedprox --since 2026-01-31`
    """
    with loading():
        from counterpoise.cli.shelf import list_all

    list_all(folders, method, data, since, before, as_json)


@runs.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")],
    metric: Metric = "",
    target: Target = None,
    as_json: Json = False,
) -> None:
    """Show one run: how it ended, every measure, and its configuration.

    Example: `counterpoise runs show runs/quickstart-fedavg-0`
    """
    with loading():
        from counterpoise.cli.shelf import show_one

    show_one(folder, metric, target, as_json)


@runs.command()
def compare(
    folders: Folders = None,
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", metavar="LABEL", help="Compare the others with this one [default: fedavg]."),
    ] = None,
    method: Method = "",
    data: Data = "",
    since: Since = "",
    before: Before = "",
    form: Annotated[
        str, typer.Option("--format", metavar="FORM", help="text, markdown, csv, or latex (with the package booktabs).")
    ] = "text",
    metric: Metric = "",
    target: Target = None,
    as_json: Json = False,
) -> None:
    """Compare runs on disk, seed by seed, as `counterpoise compare` does.

    Example: `counterpoise runs compare runs/compare-quickstart --format latex`
    """
    with loading():
        from counterpoise.cli.standings import compare_all
    compare_all(folders, baseline, method, data, since, before, form, metric, target, as_json)


@runs.command()
def rm(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of runs, comparisons, sweeps or studies.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove runs, comparisons, sweeps or studies from the disk.

    Files that counterpoise did not write stay, and so do folders that hold none of these. The results of a study, which
    lie beside its file, stay too.

    Example: `counterpoise runs rm runs/quickstart-fedavg-0`
    """
    with loading():
        from counterpoise.cli.clearing import remove_all
    remove_all(folders, yes)
