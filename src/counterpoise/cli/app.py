"""The commands. A mistake is reported as one sentence on standard error, without a traceback."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

from counterpoise import __version__, measures
from counterpoise.cli.compare import carry_on, compare, sweep
from counterpoise.cli.data import data
from counterpoise.cli.deploy import deploy
from counterpoise.cli.leaving import leave
from counterpoise.cli.listing import method_blocks, method_facts, method_list, method_page, preset_blocks, preset_list
from counterpoise.cli.partition import partition
from counterpoise.cli.progress import watched
from counterpoise.cli.report import report
from counterpoise.cli.runs import runs
from counterpoise.cli.screen import CleanFormatter, Console, echo
from counterpoise.cli.target import Target
from counterpoise.comparisons.contents import COMPARISON
from counterpoise.engine.backends.distributed import rank
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.errors import CounterpoiseError, Diverged, Failed, Interrupted, unknown
from counterpoise.measures.columns import size
from counterpoise.memory import out_of_memory
from counterpoise.runs.build import setup
from counterpoise.runs.config import override, parse, preset_names, read
from counterpoise.runs.folder import Folder
from counterpoise.runs.run import Run
from counterpoise.runs.simulate import resume as resume_run
from counterpoise.runs.simulate import run_setup

__all__ = ["app", "main"]

_LONGEST = 300
"""The longest error about the command line, in characters; it quotes what was typed."""


class _Commands(TyperGroup):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if len(said := error.format_message()) > _LONGEST:
                raise click.UsageError(f"{said[:100]}...{said[-100:]}", error.ctx) from None
            raise


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated learning for clients that differ, drift and sometimes lie.",
)

app.add_typer(data, name="data")
app.add_typer(runs, name="runs")
app.add_typer(deploy, name="deploy")
app.command()(partition)
app.command()(report)
app.command()(compare)
app.command()(sweep)

Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]
Rounds = Annotated[int | None, typer.Option("--rounds", min=1, help="Number of rounds.")]
Log = Annotated[
    list[str] | None, typer.Option("--log", metavar="NAME", help="Also log to tensorboard or mlflow; may be repeated.")
]


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if version:
        echo(__version__)
        raise typer.Exit


@app.command()
def methods(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="One method, with its equations and what it costs.")
    ] = "",
    as_json: Json = False,
) -> None:
    """List every method with its paper, its options and their defaults; or show one in full.

    Example: `counterpoise methods scaffold`
    """
    if as_json:
        echo(json.dumps(method_facts(name) if name else method_list()))
        return
    console = Console()
    for block in method_page(name) if name else method_blocks():
        console.print(block)


@app.command()
def presets(
    part: Annotated[str, typer.Argument(metavar="[NAME]", help="Only presets with this in their name.")] = "",
    as_json: Json = False,
) -> None:
    """List the ready-made experiments: what they compare, and what was published.

    Example: `counterpoise presets feda4/table-1`
    """
    names = [name for name in preset_names() if part in name]
    if part and not names:
        raise unknown("preset", part, preset_names())
    if as_json:
        echo(json.dumps(preset_list(names)))
    else:
        console = Console()
        for block in preset_blocks(names):
            console.print(block)


@app.command()
def run(
    source: Annotated[str, typer.Argument(metavar="PRESET|FILE.toml", help="A preset's name or a TOML file.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated.")
    ] = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed of all random choices.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder for the run [default: a new one in runs/].")
    ] = None,
    log: Log = None,
    target: Target = None,
    as_json: Json = False,
) -> None:
    """Run one experiment: a preset by its name (see `counterpoise presets`), or your own TOML file.

    Example: `counterpoise run quickstart --set method=fedprox --set method.mu=0.1 --rounds 20`
    """
    values, name = read(source)
    values = override(values, settings or [])
    values |= {key: value for key, value in (("rounds", rounds), ("seed", seed)) if value is not None}
    made = setup(parse(values, source))
    own = Path("runs") / f"{name}-{made.training.method.name}-{made.seed}".replace(":", "-").replace("/", "-")
    folder = out or (own if rank() else _claimed(own))
    try:
        with watched(made.training.method.name, made.rounds) as on_round, _told(as_json, target):
            done = run_setup(made, on_round, folder, log)
    except CounterpoiseError:
        if out is None and not rank():
            with contextlib.suppress(OSError):
                folder.rmdir()  # it is empty if the run was refused before its first round
        raise
    _show(done, as_json, target)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, a comparison or a sweep.")],
    rounds: Rounds = None,
    log: Log = None,
    as_json: Json = False,
) -> None:
    """Continue a run, a comparison or a sweep that was stopped, or give a finished run more rounds.

    Example: `counterpoise resume runs/quickstart-fedavg-0`
    """
    if (folder / COMPARISON).exists():
        if rounds is not None:
            raise CounterpoiseError("The rounds of a comparison are fixed; start a new one with --rounds.")
        carry_on(folder, as_json)
        return
    config = Folder.open(folder).config
    ran: list[RoundRecord] = []
    with watched(config.method["name"], rounds or config.rounds) as on_round, _told(as_json):

        def hear(record: RoundRecord) -> None:
            ran.append(record)
            if on_round is not None:
                on_round(record)

        done = resume_run(folder, rounds=rounds, on_round=hear, log=log)
    if not ran and not rank():
        more = f"counterpoise resume {shlex.quote(str(folder))} --rounds {2 * len(done.rounds)}"
        echo(f"The run was already finished, so nothing was run. For more rounds: {more}", err=as_json)
    _show(done, as_json)


@contextlib.contextmanager
def _told(as_json: bool, target: float | None = None) -> Iterator[None]:
    """Report how a run ended that did not finish: the reason, and with --json its summary.

    Ctrl-C is handled here, because click would only print "Aborted".
    """
    try:
        yield
    except (Interrupted, Diverged, Failed) as end:
        if as_json and isinstance(end.run, Run) and not rank():
            echo(json.dumps(end.run.summary(target)))
        if isinstance(end, Interrupted):
            leave(str(end), 128 + end.signal)
        raise


def _claimed(path: Path) -> Path:
    """Make a new folder of this name, with a number at the end if the name is taken."""
    for number in itertools.count(1):
        free = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            free.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise CounterpoiseError(f"The folder {free} cannot be made: {error.strerror or error}.") from error
        return free
    raise AssertionError


def _show(run: Run, as_json: bool, target: float | None = None) -> None:
    if rank():
        return
    if as_json:
        echo(json.dumps(run.summary(target)))
        return
    loss = run.loss
    found = [] if run.accuracy is None else [f"accuracy {run.accuracy:.2%}"]
    found += [] if loss is None else [f"loss {loss:.4f}"]
    found += [] if run.personal is None else [f"personal accuracy {run.personal:.2%}"]
    kept = [
        f"{size(n)} on {where}" for n, where in ((run.bytes_server, "the server"), (run.bytes_clients, "clients")) if n
    ]
    left_out = sum(len(r.outcome.excluded) for r in run.rounds)
    judged = run.verdicts
    rejected = sorted({v["client"] for v in judged if v["action"] != "accepted"})
    skipped = [r.outcome.skipped for r in run.rounds if r.outcome.skipped]
    lines = [
        f"{run.method}: {', '.join(found) or 'no test set'} after {len(run.rounds)} rounds in {run.seconds:.1f} s",
        *_curve(run),
        *([] if target is None else [_reached(run, target)]),
        f"traffic: {size(run.bytes_up)} up, {size(run.bytes_down)} down",
        *([f"state kept: {', '.join(kept)}"] if kept else []),
        *([f"left out: {left_out} replies, with reasons in {run.folder}/clients.jsonl"] if left_out else []),
        *([f"verdicts: {_verdicts(judged)}, client by client in {run.folder}/clients.jsonl"] if judged else []),
        *([f"claims rejected of clients: {', '.join(map(str, rejected[:20]))}"] if rejected else []),
        *([f"controlled by the adversary: {', '.join(map(str, run.liars[:20]))}"] if run.liars else []),
        *([f"skipped: {len(skipped)} rounds; the last because {skipped[-1]}"] if skipped else []),
        f"kept in: {run.folder}",
    ]
    echo("\n".join(lines))


def _curve(run: Run) -> list[str]:
    """The accuracies that papers report, each with its name."""
    curve = measures.curve(run.rounds)
    if not curve:
        return []
    top = measures.best(curve)
    return [
        f"accuracy: last round {curve[-1][1]:.2%}, mean of last 10 {measures.mean_of_last(curve):.2%}, "
        f"best {top.value:.2%} (round {top.round})"
    ]


def _reached(run: Run, target: float) -> str:
    sent = measures.bytes_to(run.rounds, target)
    if sent is None:
        return f"accuracy {target:g}: never reached"
    reached = measures.rounds_to(measures.curve(run.rounds), target)
    return f"accuracy {target:g}: in round {reached}, after {size(sent)} both ways"


def _verdicts(judged: list[dict[str, Any]]) -> str:
    counts = Counter(v["action"] for v in judged)
    return ", ".join(f"{counts[action]} {action}" for action in ("accepted", "corrected", "warned", "excluded"))


def main() -> None:
    """Run the command line."""
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(CleanFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[lines])
    try:
        app()
    except (Diverged, Failed) as error:
        leave(f"Error: {error}", 1)
    except CounterpoiseError as error:
        leave(f"Error: {error}", 2)
    except KeyboardInterrupt:
        leave("Stopped.", 130)
    except BrokenPipeError:
        raise SystemExit(0) from None
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        leave(f"Error: {place}{error.strerror or error}. Check that the folder can be read and written.", 2)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        leave("Error: This machine does not have enough memory for this. Use a smaller model, cohort or batch.", 2)
