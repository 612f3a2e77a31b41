"""`counterpoise compare` and `counterpoise sweep`: run several methods or settings over several seeds, and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.choices import split
from counterpoise.cli.completing import complete_methods, complete_preset, complete_setting
from counterpoise.cli.early import check_methods, check_source, methods_set
from counterpoise.cli.metric import Metric
from counterpoise.cli.target import Target
from counterpoise.loading import loading

__all__ = ["On", "compare", "sweep"]

Source = Annotated[
    str,
    typer.Argument(metavar="PRESET|FILE.toml", help="A preset's name or a TOML file.", autocompletion=complete_preset),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting; may be repeated.",
        autocompletion=complete_setting,
    ),
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds; the first is the experiment's own.")]
Rounds = Annotated[int | None, typer.Option("--rounds", min=1, help="Number of rounds.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", help="Folder for all runs [default: one in runs/, named after the experiment]."
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the comparison that --out holds.")]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        min=1,
        help="Worker processes [default: one per GPU, or as cores allow]. Changes results by rounding at most.",
    ),
]
Together = Annotated[
    int | None,
    typer.Option(
        "--together", min=1, help="Most runs that a worker trains as one batch [default: all that can]. 1: one by one."
    ),
]
On = Annotated[
    str,
    typer.Option(
        "--on", metavar="CLUSTER", help="Run on a cluster: dask:ADDRESS, ray or ray:ADDRESS [default: this machine]."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def compare(
    source: Source,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods",
            metavar="A,B,C",
            help="Methods, with options in brackets [default: the source's, or some usual ones].",
            autocompletion=complete_methods,
        ),
    ] = None,
    seeds: Seeds = 3,
    rounds: Rounds = None,
    settings: Settings = None,
    baseline: Annotated[
        str, typer.Option("--baseline", metavar="METHOD", help="Compare the others with this one [default: fedavg].")
    ] = "",
    out: Out = None,
    overwrite: Overwrite = False,
    jobs: Jobs = None,
    together: Together = None,
    on: On = "",
    metric: Metric = "",
    target: Target = None,
    as_json: Json = False,
) -> None:
    """Compare methods over the same seeds: each seed gives all of them the same data, cohorts, batches and weights.

    The same command continues a comparison that was stopped. With `--out`, you can add methods and seeds to one.

    Example: `counterpoise compare quickstart --methods "fedavg,fedprox(mu=0.1),feddua:fedavg" --seeds 5`
    """
    check_source(source)
    named = [name for text in methods or [] for name in split(text)]
    check_methods(source, [*(settings or []), *named], named)
    with loading():
        from counterpoise.cli.comparing import Shown, start_comparison
        from counterpoise.comparisons.perform import Workers
    workers = Workers(jobs, together, on)
    start_comparison(
        source,
        methods or [],
        seeds,
        rounds,
        settings or [],
        baseline,
        out,
        overwrite,
        workers,
        Shown(metric, target, as_json),
    )


def sweep(
    source: Source,
    over: Annotated[
        list[str] | None,
        typer.Option("--over", metavar="KEY=V,V,...", help="Values of a setting. If repeated: every combination."),
    ] = None,
    at: Annotated[
        list[str] | None, typer.Option("--at", metavar="KEY=V,KEY=V", help="One combination; may be repeated.")
    ] = None,
    seeds: Seeds = 3,
    rounds: Rounds = None,
    settings: Settings = None,
    out: Out = None,
    overwrite: Overwrite = False,
    jobs: Jobs = None,
    together: Together = None,
    on: On = "",
    metric: Metric = "",
    target: Target = None,
    as_json: Json = False,
) -> None:
    """Try settings over the same seeds and name the best, with a warning if its lead may be noise.

    Example: `counterpoise sweep quickstart --set method=fedprox --over method.mu=0,0.01,0.1 --over local.epochs=1,2`
    """
    check_source(source)
    points = [one for text in at or [] for one in split(text)]
    swept = [name for text in methods_set(over or []) for name in split(text)]
    typed = [*(settings or []), *(over or []), *points]
    check_methods(source, typed, swept or methods_set([*(settings or []), *points]))
    with loading():
        from counterpoise.cli.comparing import Shown, start_sweep
        from counterpoise.comparisons.perform import Workers
    workers = Workers(jobs, together, on)
    start_sweep(
        source,
        over or [],
        at or [],
        seeds,
        rounds,
        settings or [],
        out,
        overwrite,
        workers,
        Shown(metric, target, as_json),
    )
