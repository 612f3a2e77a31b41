"""What `counterpoise compare` and `counterpoise sweep` do: make a plan, run it, and print who is ahead."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import typer

from counterpoise.choices import split
from counterpoise.cli.leaving import ended_by_signals, leave
from counterpoise.cli.running import at_home
from counterpoise.cli.screen import echo, output, print_told
from counterpoise.cli.tables import stand_table
from counterpoise.comparisons.arms import compared, swept
from counterpoise.comparisons.asking import own_objects
from counterpoise.comparisons.board import plan_board, shown
from counterpoise.comparisons.collection import of_plan
from counterpoise.comparisons.conduct import News, conducting, held, open_pieces
from counterpoise.comparisons.contents import COMPARISON
from counterpoise.comparisons.going_on import failures, how_far, resuming
from counterpoise.comparisons.perform import Workers, crew, taken
from counterpoise.comparisons.plan import Plan, read_plan
from counterpoise.comparisons.ranking import reached, verdict
from counterpoise.comparisons.removal import remove
from counterpoise.comparisons.standing import Stand, stand_of
from counterpoise.comparisons.tables import as_plain
from counterpoise.errors import CounterpoiseError
from counterpoise.measures.naming import check_planned
from counterpoise.runs.files import Unwritten, check_plain
from counterpoise.runs.trust import check_trusted

__all__ = ["carry_on", "start_comparison", "start_sweep"]


class Shown(NamedTuple):
    """What a user wants to see at the end."""

    metric: str = ""
    target: float | None = None
    as_json: bool = False

    def check(self, plan: Plan) -> None:
        """Refuse a metric that no run of a plan will measure, before they run; also one that a run would stop by."""
        for arm in plan.arms:
            values = next(plan.pieces(arm)).values
            choices = values.get("metrics") or [{"name": "accuracy"}]
            names = [str(choice["name"]).rpartition(":")[2] for choice in choices]
            check_planned(self.metric or "loss", names)
            check_planned(values.get("stop", {}).get("metric", "loss"), names, "to stop by")


def start_comparison(
    source: str,
    methods: Sequence[str],
    seeds: int,
    rounds: int | None,
    settings: Sequence[str],
    baseline: str,
    out: Path | None,
    overwrite: bool,
    workers: Workers,
    show: Shown,
) -> None:
    """Run methods over the same seeds, or what is left of that."""
    named = [name for text in methods for name in split(text)]
    plan = compared(source, named, settings, seeds, rounds, _command(), baseline)
    _do(plan, out, overwrite, workers, show)


def start_sweep(
    source: str,
    over: Sequence[str],
    at: Sequence[str],
    seeds: int,
    rounds: int | None,
    settings: Sequence[str],
    out: Path | None,
    overwrite: bool,
    workers: Workers,
    show: Shown,
) -> None:
    """Run settings over the same seeds, or what is left of that."""
    plan = swept(source, over, at, settings, seeds, rounds, _command())
    _do(plan, out, overwrite, workers, show)


def carry_on(folder: Path, workers: Workers, trust: Path | None, as_json: bool) -> None:
    """Continue the comparison or sweep in a folder."""
    plan = read_plan(folder)  # fails before a lock file is made in a folder without a plan
    if own := own_objects(open_pieces(folder, plan)):
        raise CounterpoiseError(
            f"The {plan.kind} in {folder} uses its author's own {' and '.join(own)}, which only Python has. "
            f"Continue it in Python with the same call: cp.{plan.kind}(..., out={str(folder)!r})."
        )
    values = [next(plan.pieces(arm)).values for arm in plan.arms]
    folder, trust = at_home(folder, trust, values[0]["data"]["name"])
    check_trusted(values, plan.values.get("code", {}), str(folder), trust)
    check_plain(folder)
    with held(folder) as lock:
        _finish(folder, read_plan(folder), lock, workers, Shown(as_json=as_json))


def _command() -> str:
    return shlex.join(["counterpoise", *sys.argv[1:]])


def _do(plan: Plan, out: Path | None, overwrite: bool, workers: Workers, show: Shown) -> None:
    show.check(plan)
    folder = out or _place(plan)
    if overwrite and (folder / COMPARISON).exists():
        remove(folder)
    with taken(folder, plan) as (whole, lock):
        _finish(folder, whole, lock, workers, show)


def _place(plan: Plan) -> Path:
    """The folder in runs/ that holds exactly this plan, otherwise the first free one."""
    name = re.sub(r"[^\w.-]+", "-", Path(plan.source).stem if plan.source.endswith(".toml") else plan.source)
    for number in itertools.count(1):
        folder = Path("runs") / (f"{plan.kind}-{name}" + (f"-{number}" if number > 1 else ""))
        if not folder.exists():
            return folder
        if (folder / COMPARISON).exists():
            other = read_plan(folder)
            if (other.kind, other.seeds, other.arms, other.values) == (plan.kind, plan.seeds, plan.arms, plan.values):
                return folder
    raise AssertionError


def _finish(folder: Path, plan: Plan, lock: int | None, workers: Workers, show: Shown) -> None:
    already = not open_pieces(folder, plan)
    told: dict[str, str] = {}
    with ended_by_signals() as came:
        try:
            with conducting(folder):
                found, written = _done(folder, plan, lock, workers, told, show.metric)
        except KeyboardInterrupt:
            _stopped(folder, plan, workers, show, came[0])
    failed = told | {group.label: group.failure for group in found.groups if group.sentence}
    report = written if isinstance(written, Path) else None
    if already:
        echo("All its runs had already ended, so nothing was run.", err=show.as_json)
    if show.as_json:
        echo(json.dumps(_document(folder, plan, found, show.target, report)))
    else:
        _print(folder, plan, found, show.target, failed, report)
    if isinstance(written, Unwritten):
        raise written  # after the table, which need not be lost with the report
    if failed:
        raise typer.Exit(1)


def _done(
    folder: Path, plan: Plan, lock: int | None, workers: Workers, told: dict[str, str], metric: str
) -> tuple[Stand, Path | Unwritten]:
    """Run the open pieces. `told` collects why arms failed, even if that could not be written to disk.

    Returns the result and the report, or why there is none.
    """
    pieces = open_pieces(folder, plan)
    with crew(folder, pieces, lock, workers) as found:
        if found.sentence:
            echo(found.sentence, err=True)
        board = plan_board(plan, of_plan(folder, plan), found.workers, metric)
        with shown(board, log=partial(echo, err=True)) as hear:

            def listen(news: News | None) -> None:
                if news is not None and news.end == "failed":
                    told.setdefault(news.piece.label, news.sentence)
                hear(news)

            found.work(listen)
    from counterpoise.reports import write  # imports plotly, which is slow

    stand = _stand(folder, plan, metric)
    try:
        return stand, write(folder, metric=metric)
    except Unwritten as error:
        return stand, error


def _stand(folder: Path, plan: Plan, metric: str) -> Stand:
    return stand_of(of_plan(folder, plan), plan.baseline, metric=metric)


def _stopped(folder: Path, plan: Plan, workers: Workers, show: Shown, came: int) -> NoReturn:
    if show.as_json:
        echo(json.dumps(_document(folder, plan, _stand(folder, plan, show.metric), show.target, None)))
    values = [next(plan.pieces(arm)).values for arm in plan.arms]
    leave(f"{how_far(folder, plan)} Continue with: {resuming(folder, values, workers.words)}", 128 + came)


def _document(folder: Path, plan: Plan, found: Stand, target: float | None, report: Path | None) -> dict[str, Any]:
    return {
        "kind": plan.kind,
        "source": plan.source,
        "out": str(folder),
        "report": None if report is None else str(report),
        "seeds": list(plan.seeds),
        "baseline": plan.baseline or None,
        "metric": found.metric,
        "open": len(open_pieces(folder, plan)),
        "arms": [
            {**row, "settings": dict(arm.settings)} for row, arm in zip(as_plain(found, target), plan.arms, strict=True)
        ],
        "verdict": verdict(found),
    }


def _print(
    folder: Path, plan: Plan, found: Stand, target: float | None, failed: dict[str, str], report: Path | None
) -> None:
    console = output()
    console.print(stand_table(found, plan.arm_word, console.width))
    lines = failures(failed)
    lines += reached(found, target)
    lines += verdict(found) if len(found.rows) > 1 else []
    print_told(lines, console)
    echo(f"kept in: {folder}" + (f"\nreport: {report}" if report else ""))
