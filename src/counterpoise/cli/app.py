"""The commands. A mistake is reported as one sentence on standard error, without a traceback.

Loading torch takes seconds. So the modules of the commands hold what help needs, and no more; what a command does is in
a module of its own, which the command imports when it is called.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich.text import Text
from typer.core import TyperGroup

from counterpoise import __version__
from counterpoise.cli.compare import Jobs, On, Settings, Source, Together, compare, sweep
from counterpoise.cli.completing import complete_method, complete_preset
from counterpoise.cli.data import data
from counterpoise.cli.deploy import deploy
from counterpoise.cli.early import check_methods, check_source, methods_set
from counterpoise.cli.leaving import leave
from counterpoise.cli.partition import partition
from counterpoise.cli.report import report
from counterpoise.cli.runs import runs
from counterpoise.cli.screen import CleanFormatter, Console, echo, output, page
from counterpoise.cli.study import study
from counterpoise.cli.target import Target
from counterpoise.errors import DEBUG, CounterpoiseError, Diverged, Failed, unknown
from counterpoise.loading import loading
from counterpoise.memory import out_of_memory
from counterpoise.own import LOOKED_FOR, allow, blamed, respelt
from counterpoise.presets import preset_names

__all__ = ["app", "main"]

_LONGEST = 300
"""The longest error about the command line, in characters; it quotes what was typed."""


_PANELS = {
    "Run experiments": ("run", "compare", "sweep", "study", "resume"),
    "Look at results": ("report", "runs"),
    "Look up": ("methods", "presets", "data", "partition"),
    "Deploy": ("deploy",),
}
"""The commands in the order of the help."""


class _Commands(TyperGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in _PANELS.values() for name in names]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        command = super().get_command(ctx, name)
        if command is not None:
            panel = next(panel for panel, names in _PANELS.items() if name in names)
            command.rich_help_panel = panel  # type: ignore[attr-defined]
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # typer would end without a word
            leave("Stopped.", 130)
        except click.UsageError as error:
            if isinstance(error, click.NoSuchOption) and error.option_name == "--trust":
                raise click.UsageError(f"--trust is for `resume`. {LOOKED_FOR}", error.ctx) from None
            if isinstance(error, click.NoSuchOption) and (key := _meant(error)):
                said = f"No such option '{error.option_name}'. It is a setting: use --set {key}=VALUE."
                raise click.UsageError(said, error.ctx) from None
            said = _suggesting(error) if isinstance(error, click.NoSuchOption) else error.format_message()
            if len(said) > _LONGEST:
                raise click.UsageError(f"{said[:100]}...{said[-100:]}", error.ctx) from None
            if isinstance(error, click.NoSuchOption):
                raise click.UsageError(said, error.ctx) from None
            raise


def _suggesting(error: click.NoSuchOption) -> str:
    """The sentence about an unknown option, with the closest option first; click would order them by the alphabet."""
    near = " or ".join(map(repr, error.possibilities or ()))
    return f"{error.message} Did you mean {near}?" if near else error.message


def _meant(error: click.NoSuchOption) -> str | None:
    """The setting that somebody took for an option, if the command takes settings."""
    options = [name for param in error.ctx.command.params for name in param.opts] if error.ctx else []
    if "--set" not in options or any(name.startswith(error.option_name) for name in options):
        return None
    from counterpoise.cli.settings import setting_keys

    name = error.option_name.lstrip("-")
    return next((key for key in setting_keys("") if key.rpartition(".")[2] == name), None)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    suggest_commands=False,  # click does
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated learning for clients that differ, drift and sometimes lie.",
)

app.add_typer(data, name="data")
app.add_typer(runs, name="runs")
app.add_typer(study, name="study")
app.add_typer(deploy, name="deploy")
app.command()(partition)
app.command()(report)
app.command()(compare)
app.command()(sweep)

Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]
All = Annotated[bool, typer.Option("--all", help="Show all in full.")]
Rounds = Annotated[int | None, typer.Option("--rounds", min=1, help="Number of rounds in total.")]
Log = Annotated[
    list[str] | None,
    typer.Option("--log", metavar="NAME", help="Also log to tensorboard, mlflow or wandb; may be repeated."),
]

Trust = Annotated[
    Path | None,
    typer.Option("--trust", metavar="FOLDER", help="Import the code of your own that it names from this folder."),
]


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if version:
        echo(__version__)
        raise typer.Exit


@app.command()
def methods(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="One method, with its equations and what it costs.",
            autocompletion=complete_method,
        ),
    ] = "",
    everything: All = False,
    as_json: Json = False,
) -> None:
    """List the methods, or show one in full: its paper, its options and their defaults.

    Example: `counterpoise methods scaffold`
    """
    with loading():
        from counterpoise.cli.overview import grouped_methods, short_table

    groups = grouped_methods()
    names = [line.name for lines in groups.values() for line in lines]
    if name and ":" not in name and name not in names:
        raise unknown("method", name, names, meant=respelt(name))  # before torch is loaded
    if not (name or everything or as_json):
        console = output()
        hint = Text("counterpoise methods NAME shows one in full; --all shows all.", style="dim")
        page([*short_table(groups, console.width), hint], console)
        return
    with loading():
        from counterpoise.cli.listing import method_blocks, method_facts, method_list, method_page
    allow(name, Path())
    if as_json:
        echo(json.dumps(method_facts(name) if name else method_list()))
        return
    console = Console()
    page(method_page(name) if name else [*short_table(groups, console.width), *method_blocks()], console)


@app.command()
def presets(
    part: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]", help="Only presets with this in their name, in full.", autocompletion=complete_preset
        ),
    ] = "",
    everything: All = False,
    as_toml: Annotated[bool, typer.Option("--toml", help="Print the preset NAME as a complete TOML file.")] = False,
    as_json: Json = False,
) -> None:
    """List the ready-made experiments; or show some in full: what they compare, and what was published.

    Example: `counterpoise presets feda4/table-1`
    """
    with loading():
        from counterpoise.cli.overview import about, grouped_presets, short_table

    names = [name for name in preset_names() if part in name]
    if part and not names:
        raise unknown("preset", part, preset_names(), listing="counterpoise presets")
    if as_toml:
        if part not in names:
            raise CounterpoiseError("--toml prints one preset; give its whole name: counterpoise presets NAME --toml.")
        with loading():
            from counterpoise.cli.files import preset_file
        echo(preset_file(part), nl=False)
        return
    if not (part or everything or as_json):
        console = output()
        hint = "counterpoise presets NAME shows some in full; --all shows all. Most have a small variant: NAME-small."
        page([*short_table(grouped_presets(names, about), console.width), Text(hint, style="dim")], console)
        return
    with loading():
        from counterpoise.cli.experiments import preset_blocks, preset_list

    if as_json:
        echo(json.dumps(preset_list(names)))
        return
    console = Console()
    table = short_table(grouped_presets(names, about), console.width) if len(names) > 2 else ()
    page([*table, *preset_blocks(names)], console)


@app.command()
def run(
    source: Source,
    settings: Settings = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed of all random choices.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder for the run [default: a new one in runs/].")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that --out holds.")] = False,
    log: Log = None,
    target: Target = None,
    as_json: Json = False,
) -> None:
    """Run one experiment: a preset by its name (see `counterpoise presets`), or your own TOML file.

    The same command with `--out` again continues a run that was stopped, and shows one that is finished.

    Example: `counterpoise run quickstart --set method=fedprox --set method.mu=0.1 --rounds 20`
    """
    check_source(source)
    check_methods(source, settings or [], methods_set(settings or []))
    with loading():
        from counterpoise.cli.running import start
    start(source, settings or [], rounds, seed, out, overwrite, log, target, as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, a comparison or a sweep.")],
    rounds: Rounds = None,
    log: Log = None,
    jobs: Jobs = None,
    together: Together = None,
    on: On = "",
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Continue a run, a comparison or a sweep that was stopped, or give a finished run more rounds.

    Example: `counterpoise resume runs/quickstart-fedavg-0`
    """
    with loading():
        from counterpoise.cli.comparing import carry_on as carry_on_comparison
        from counterpoise.cli.running import carry_on as carry_on_run
        from counterpoise.comparisons.contents import COMPARISON
        from counterpoise.comparisons.perform import Workers
        from counterpoise.studies.contents import STUDY
    if (folder / STUDY).exists():
        raise CounterpoiseError(
            f"{folder} holds a study. Continue it with the command that began it: counterpoise study run."
        )
    workers = Workers(jobs, together, on)
    if not (folder / COMPARISON).exists():
        if workers.words:
            raise CounterpoiseError(
                f"{workers.words[0]} is for comparisons and sweeps; a run continues in one process on this machine."
            )
        carry_on_run(folder, rounds, log, trust, as_json)
        return
    if rounds is not None:
        raise CounterpoiseError("The rounds of a comparison are fixed; start a new one with --rounds.")
    carry_on_comparison(folder, workers, trust, as_json)


def main() -> None:
    """Run the command line."""
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(CleanFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[lines])
    try:
        app(prog_name="counterpoise")
    except (Diverged, Failed) as error:
        leave(f"Error: {error}", 1)
    except CounterpoiseError as error:
        if os.environ.get(DEBUG):
            raise
        leave("\n".join([f"Error: {error}", *getattr(error, "__notes__", ())]), 2)
    except KeyboardInterrupt:
        leave("Stopped.", 130)
    except BrokenPipeError:
        raise SystemExit(0) from None
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        leave(f"Error: {place}{error.strerror or error}. Check that the folder can be read and written.", 2)
    except Exception as error:
        if out_of_memory(error):
            leave("Error: This machine does not have enough memory for this. Use a smaller model, cohort or batch.", 2)
        if os.environ.get(DEBUG) or not (said := blamed(error)):
            raise
        leave(f"Error: Your own code failed: {said} {DEBUG}=1 before the command shows the traceback.", 2)
