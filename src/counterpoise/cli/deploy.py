"""`counterpoise deploy`: write a Flower app to start from, and deploy it completely on this machine."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from counterpoise.cli.leaving import ended_by_signals
from counterpoise.cli.screen import Console, echo
from counterpoise.errors import CounterpoiseError

if TYPE_CHECKING:
    from counterpoise.engine.rounds.records import RoundRecord

__all__ = ["deploy"]

deploy = typer.Typer(no_args_is_help=True, suggest_commands=False, help="Run a method on Flower, on real SuperNodes.")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the Flower app.")]


@deploy.command()
def new(folder: Folder) -> None:
    """Write a small Flower app that `flwr run` accepts.

    Example: `counterpoise deploy new site`
    """
    for path in _imported("project").new_project(folder):
        echo(f"written: {path}")
    echo(f"try it: counterpoise deploy local {folder}")


@deploy.command()
def local(
    folder: Folder,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Number of SuperNodes; each is one client.")] = 4,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Number of rounds.")] = 5,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="RUN", help="Folder of the run [default: DIR/runs/local].")
    ] = None,
) -> None:
    """Deploy an app on this machine, with TLS and node keys, run it, and take everything down again.

    If the folder already holds a run, it continues from its last round.

    Example: `counterpoise deploy local site --nodes 4`
    """
    deployment = _imported("local")
    kept = (out or folder / "runs" / "local").resolve()
    console = Console(stderr=True)
    say = console.status("starting the SuperLink and its nodes ...")
    try:
        with ended_by_signals(), say, deployment.Deployment(folder, nodes) as running:
            say.update("submitting the run ...")
            run = running.submit({"clients": nodes, "rounds": rounds, "out": str(kept)})
            say.stop()
            for record in running.rounds(run, kept, rounds):
                echo(_line(record, rounds))
            say.update("taking everything down ...")
            say.start()
    except KeyboardInterrupt:  # handled here, because click would only print "Aborted"
        echo("Stopped, and everything taken down. The same command continues from the last round.", err=True)
        raise typer.Exit(130) from None
    echo(f"kept in: {kept}")
    echo(f"report: {_report(kept)}")


@deploy.command()
def certify(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Names or IP addresses under which nodes reach the SuperLink.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the three files.")] = Path(
        "certificates"
    ),
    renew: Annotated[bool, typer.Option("--renew", help="Replace the files; all nodes need the new ca.crt.")] = False,
) -> None:
    """Make a certificate for a SuperLink, and the authority that signs it.

    It is good for a year, and also for 127.0.0.1 and localhost.

    Example: `counterpoise deploy certify link.example.org 192.0.2.7`
    """
    _imported("credentials").certify(out, names, renew=renew)
    for name, whose in (("ca.crt", "give it to every node"), ("server.pem", ""), ("server.key", "keep it secret")):
        echo(f"written: {out / name}" + (f" ({whose})" if whose else ""))


@deploy.command()
def key(path: Annotated[Path, typer.Argument(metavar="FILE", help="File of the private key.")] = Path("key")) -> None:
    """Make a node's key pair: FILE, which stays on the node, and FILE.pub, which the server's operator registers.

    Example: `counterpoise deploy key`
    """
    _imported("credentials").make_key(path)
    echo(f"written: {path} (it stays on this machine)")
    echo(f"written: {path}.pub (send it to the server's operator)")


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(f"counterpoise.flower.{module}")
    except ImportError as error:
        raise CounterpoiseError(f"{error}. Deploying needs Flower: pip install 'counterpoise[flower]'") from None


def _line(record: RoundRecord, rounds: int) -> str:
    heard = len(record.cohort) - len(record.outcome.excluded)
    found = [f"{heard} of {len(record.cohort)} clients"]
    found += [f"{name} {value:.4g}" for name, value in record.metrics.items() if name in ("accuracy", "loss")]
    lines = [f"round {record.round} of {rounds}: {', '.join(found)}, {record.seconds:.0f} s"]
    lines += [f"  client {client} is left out: {reason}" for client, reason in record.outcome.excluded.items()]
    lines += [
        f"  {verdict.told(client)}"
        for client, verdict in record.outcome.verdicts.items()
        if verdict.action != "accepted" and record.outcome.excluded.get(client) != verdict.reason
    ]
    return "\n".join(lines)


def _report(run: Path) -> Path:
    from counterpoise.reports import write  # imports plotly, which is slow

    return write(run)
