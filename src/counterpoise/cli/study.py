"""`counterpoise study`: experiments in cells, run together and held against what was published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.compare import Jobs, On, Together
from counterpoise.loading import loading

__all__ = ["study"]

study = typer.Typer(
    no_args_is_help=True,
    suggest_commands=False,
    rich_markup_mode="markdown",
    help="Run a study, that is, cells of methods and seeds in one file, and hold it against what was published.",
)

File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The study.")]
Shown = Annotated[Path, typer.Argument(metavar="FILE", help="The study (.toml), or its results alone (.json).")]
Results = Annotated[
    Path | None,
    typer.Option(
        "--results", metavar="FILE.json", help="What the study found [default: beside FILE, ending in .json]."
    ),
]
Cells = Annotated[
    list[str] | None,
    typer.Option("--cells", metavar="A,B,C", help="Only these cells; * stands for anything; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@study.command()
def run(
    file: File,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Folder for all runs [default: one in runs/, named after the study]."
        ),
    ] = None,
    cells: Cells = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--methods", metavar="A,B,C", help="Only these methods, named as in FILE; * stands for anything."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Number of seeds in every cell [default: as FILE says].")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also run cells that FILE says cannot be run: you have their data.")
    ] = False,
    results: Results = None,
    jobs: Jobs = None,
    together: Together = None,
    on: On = "",
    as_json: Json = False,
) -> None:
    """Run the cells of a study together, or what is left of them, and show how they stand to what was published.

    The same command continues a study that was stopped. What has a result is not run again, so that cells, methods and
    seeds can be added later.

    Example: `counterpoise study run studies/example.toml --cells mild --methods fedavg`
    """
    with loading():
        from counterpoise.cli.studying import run_study
        from counterpoise.comparisons.perform import Workers
    run_study(file, out, cells or [], methods or [], seeds, anyway, results, Workers(jobs, together, on), as_json)


@study.command()
def show(file: Shown, cells: Cells = None, results: Results = None, as_json: Json = False) -> None:
    """Show what a study found, from its results alone: our values, the published ones, and the verdicts.

    Example: `counterpoise study show studies/example.toml`
    """
    with loading():
        from counterpoise.cli.findings import show_study
    show_study(file, cells or [], results, as_json)


@study.command()
def report(
    file: Shown,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for the pages [default: the current one].")
    ] = Path(),
    cells: Cells = None,
    results: Results = None,
) -> None:
    """Write a study as an HTML page, and as a part of a Markdown page with its figure, from its results alone.

    Example: `counterpoise study report studies/example.toml --out build`
    """
    with loading():
        from counterpoise.cli.findings import report_study
    report_study(file, out, cells or [], results)
