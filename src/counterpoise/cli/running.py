"""What `counterpoise run` and `counterpoise resume` do: run, and say in a few lines what was found."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from counterpoise import measures
from counterpoise.cli.leaving import leave
from counterpoise.cli.screen import echo, output, print_told
from counterpoise.engine.backends.distributed import rank
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.errors import CounterpoiseError, Diverged, Failed, Interrupted
from counterpoise.measures import own_curve
from counterpoise.memory import bytes_in_words
from counterpoise.runs.build import setup
from counterpoise.runs.config import override, parse, read
from counterpoise.runs.course import OnRound
from counterpoise.runs.folder import Folder
from counterpoise.runs.origin import begun_in
from counterpoise.runs.run import Run
from counterpoise.runs.starting import resume as resume_run
from counterpoise.runs.starting import run_setup, watched
from counterpoise.runs.trust import check_named, own_names
from counterpoise.texts import counted, percent

__all__ = ["at_home", "carry_on", "start"]


def start(
    source: str,
    settings: Sequence[str],
    rounds: int | None,
    seed: int | None,
    out: Path | None,
    overwrite: bool,
    log: list[str] | None,
    target: float | None,
    as_json: bool,
) -> None:
    """Run an experiment with some of its settings changed."""
    values, name = read(source, settings)
    values = override(values, settings)
    values |= {key: value for key, value in (("rounds", rounds), ("seed", seed)) if value is not None}
    check_named(values, source)
    made = setup(parse(values, source))
    own = Path("runs") / f"{name}-{made.training.method.name}-{made.seed}".replace(":", "-").replace("/", "-")
    folder = out or (own if rank() else _claimed(own))
    try:
        with watched(made.training.method.name, made.rounds, leave=False) as show, _told(as_json, target):
            ran, hear = _counting(show)
            done = run_setup(made, hear, folder, log, overwrite)
    finally:
        if out is None and not rank():
            with contextlib.suppress(OSError):
                folder.rmdir()  # it is empty if the run was refused before its first round
    _show(done, as_json, target, bool(ran))


def carry_on(folder: Path, rounds: int | None, log: list[str] | None, trust: Path | None, as_json: bool) -> None:
    """Continue the run in a folder."""
    config = Folder.open(folder).config
    folder, trust = at_home(folder, trust, config.data.name)
    with watched(config.method["name"], rounds or config.rounds, leave=False) as show, _told(as_json):
        ran, hear = _counting(show)
        done = resume_run(folder, rounds=rounds, on_round=hear, log=log, progress=False, trust=trust)
    _show(done, as_json, None, bool(ran))


def at_home(folder: Path, trust: Path | None, data: str) -> tuple[Path, Path | None]:
    """Change to the folder that a run was begun in, if its data is there and not here. Returns both paths as seen there."""
    if (home := begun_in(folder, data)) is None:
        return folder, trust
    folder, trust = folder.resolve(), trust and trust.resolve()
    echo(f"{data} is not here, so this continues in {home}, where it is.", err=True)
    os.chdir(home)
    return folder, trust


def _counting(show: OnRound | None) -> tuple[list[int], OnRound]:
    """The rounds that are run from now on, and a callback that notes them and shows each."""
    ran: list[int] = []

    def hear(record: RoundRecord) -> None:
        ran.append(record.round)
        if show is not None:
            show(record)

    return ran, hear


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


def _show(run: Run, as_json: bool, target: float | None, ran: bool) -> None:
    if rank():
        return
    if not ran:
        trust = " --trust FOLDER" if own_names(run.settings) else ""
        more = f"counterpoise resume {shlex.quote(str(run.folder))} --rounds {2 * len(run.rounds)}{trust}"
        echo(f"The run was already finished, so nothing was run. For more rounds: {more}", err=as_json)
    if as_json:
        echo(json.dumps(run.summary(target)))
        return
    loss = run.loss
    found = [] if run.accuracy is None else [f"accuracy {percent(run.accuracy)}"]
    found += [] if loss is None else [f"loss {loss:.4g}"]
    found += [] if run.personal is None else [f"personal accuracy {percent(run.personal)}"]
    if not found and (own := own_curve(run.rounds)):
        found = [f"accuracy {percent(own[-1][1])} on clients' held-out data"]
    elif not found and (own := own_curve(run.rounds, "loss")):
        found = [f"loss {own[-1][1]:.4g} on clients' held-out data"]
    kept = [
        f"{bytes_in_words(n)} on {where}"
        for n, where in ((run.bytes_server, "the server"), (run.bytes_clients, "clients"))
        if n
    ]
    left_out = sum(len(r.outcome.excluded) for r in run.rounds)
    judged = run.verdicts
    skipped = [r.outcome.skipped for r in run.rounds if r.outcome.skipped]
    rounds = counted(len(run.rounds), "round")
    lines = [
        f"{run.method}: {', '.join(found) or 'nothing measured'} after {rounds} in {run.seconds:.1f} s",
        *([f"ended early: {run.why}"] if run.why else []),
        *_curve(run),
        *([] if target is None else [_reached(run, target)]),
        f"traffic: {bytes_in_words(run.bytes_up)} up, {bytes_in_words(run.bytes_down)} down",
        *([f"state kept: {', '.join(kept)}"] if kept else []),
        *([f"left out: {left_out} replies"] if left_out else []),
        *([f"verdicts: {_verdicts(judged)}"] if judged else []),
        *_rejected(run),
        *([f"controlled by the adversary: {', '.join(_called(run, run.liars[:20]))}"] if run.liars else []),
        *([f"skipped: {counted(len(skipped), 'round')}; the last because {skipped[-1]}"] if skipped else []),
        f"kept in: {run.folder}",
        *(["  why, client by client: clients.jsonl there"] if left_out or judged else []),
    ]
    print_told(lines, output())


def _curve(run: Run) -> list[str]:
    """The accuracies that papers report beside that of the last round, each with its name."""
    curve = measures.curve(run.rounds)
    if len(curve) < 2:  # all of them are the last round's
        return []
    top = measures.best(curve)
    over = "last 10" if curve[-1][0] > 10 else f"all {len(curve)}"
    return [
        f"accuracy: mean of {over} {percent(measures.mean_of_last(curve))}, "
        f"best {percent(top.value)} (round {top.round})"
    ]


def _reached(run: Run, target: float) -> str:
    sent = measures.bytes_to(run.rounds, target)
    if sent is None:
        return f"accuracy {target:g}: never reached"
    reached = measures.rounds_to(measures.curve(run.rounds), target)
    return f"accuracy {target:g}: in round {reached}, after {bytes_in_words(sent)} both ways"


def _rejected(run: Run) -> list[str]:
    """Whose claims and whose updates were not accepted."""
    found: dict[bool, set[int]] = {True: set(), False: set()}
    for record in run.rounds:
        for client, verdict in record.outcome.verdicts.items():
            if verdict.action != "accepted":
                found[verdict.about_claim].add(client)
    words = {True: "claims rejected of clients", False: "updates left out of clients"}
    return [f"{words[about]}: {', '.join(_called(run, sorted(some)[:20]))}" for about, some in found.items() if some]


def _verdicts(judged: list[dict[str, Any]]) -> str:
    counts = Counter(v["action"] for v in judged)
    return ", ".join(f"{counts[action]} {action}" for action in ("accepted", "corrected", "warned", "excluded"))


def _called(run: Run, clients: Sequence[int]) -> list[str]:
    """What clients are called: their names, or their numbers."""
    return [str(client) if run.client_names is None else run.client_names[client] for client in clients]
