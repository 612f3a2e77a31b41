"""Choose runs on disk, and list or show them."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from rich.table import Table
from rich.text import Text

from counterpoise.cli.screen import echo, output, print_told
from counterpoise.cli.tables import lines
from counterpoise.comparisons.collection import read_or_tell, read_run, run_folders
from counterpoise.comparisons.contents import COMPARISON
from counterpoise.comparisons.wording import number
from counterpoise.errors import CounterpoiseError, no_folder
from counterpoise.measures import (
    CLIENT,
    PERSONAL,
    check_metric,
    client_curve,
    curve,
    has_personal,
    is_share,
    last,
    lower_is_better,
    measured_as,
    metric_words,
    metrics_of,
    of_clients,
    own_curve,
    plain_name,
    usual_metric,
)
from counterpoise.memory import bytes_in_words
from counterpoise.runs.companions import worded_batches
from counterpoise.runs.contents import FAILURE
from counterpoise.runs.ending import left_out
from counterpoise.runs.saved import UNREADABLE, SavedRun
from counterpoise.texts import clean, counted, percent

__all__ = ["chosen", "in_words", "list_all", "places", "show_one"]


_SHARES = ("detection recall", "detection false alarms", "detection caught", "detection accused")
_MOST = 30
_LEFT_OUT = 10
"""More clients are not listed one by one, except in JSON."""


def list_all(folders: Sequence[Path] | None, method: str, data: str, since: str, before: str, as_json: bool) -> None:
    """The runs in folders, one a line."""
    found = chosen(folders, method, data, since, before, read_or_tell)
    if as_json:
        echo(json.dumps([_plain(run) for run in found]))
        return
    if not found:
        echo("No runs.")
        return
    console = output()
    heads = ("changed", "method", "data", "seed", "rounds", "accuracy", "run")
    for line in lines(heads, [_listed(run) for run in found], ("seed", "rounds", "accuracy"), console.width):
        console.print(line, soft_wrap=True)
    if any(_accuracy(run).endswith("*") for run in found):
        print_told(["* mean over clients on their held-out data: nothing was measured on a test set"], console)
    for run in found:
        if run.status == UNREADABLE:
            echo(f"unreadable: {run.sentence}")
        if run.why:
            echo(f"ended early: {run.path}: {run.why}")


def _listed(run: SavedRun) -> list[Text]:
    """A run's row in the listing."""
    same = run.changed.year == datetime.date.today().year
    ended = Text(_ended(run), style="red" if run.failed else "yellow")
    return [
        Text(f"{run.changed:%m-%d %H:%M}" if same else f"{run.changed:%Y-%m-%d}"),
        _cell(run.method),
        _cell(run.data),
        Text("" if run.status == UNREADABLE else str(run.seed)),
        Text.assemble(f"{len(run.records)}/{run.rounds}", ended, (" doubtful" if run.doubts else "", "yellow")),
        Text(_accuracy(run)),
        _cell(run.path),
    ]


def _accuracy(run: SavedRun) -> str:
    """On the test set, or with a star on clients' held-out data."""
    tested, own = last(curve(run.records)), last(own_curve(run.records))
    return number(own, "accuracy") + "*" * (own == own) if tested != tested else number(tested, "accuracy")


def _ended(run: SavedRun) -> str:
    if run.status == "finished":
        return " early" if run.why else ""
    return f" {run.status}"


def _cell(value: object) -> Text:
    """Text that somebody else may have written, on one line and as wide as it is printed."""
    return Text(clean(str(value)).replace("\n", r"\n").replace("\t", r"\t"))


def show_one(folder: Path, metric: str, target: float | None, as_json: bool) -> None:
    """How a run ended, every measure, and its configuration."""
    run = _one(folder)
    known = metrics_of(run.records)
    if metric:
        check_metric(measured_as(metric, known, has_personal(run.records, metric)), known, "in this run")
    name = plain_name(metric or usual_metric(known))  # the measures have the personal models beside it
    measures = run.measures(name, target, lower_is_better(name))
    if metric.startswith(PERSONAL):
        measures = dict(sorted(measures.items(), key=lambda pair: not pair[0].startswith("own model's")))
    each = _by_client(run, name)
    if as_json:
        plain = {k: None if isinstance(v, float) and v != v else v for k, v in measures.items()}
        more = {"batches": run.batches, "measures": plain, "clients": each, "settings": dict(run.settings)}
        echo(json.dumps({**_plain(run), **more}, default=str))
        return
    table = Table.grid(padding=(0, 2))
    for key, value in measures.items():
        worded = key.replace("own model's", "personal")  # in JSON the key stays as it is
        table.add_row(Text(worded), Text(in_words(key, value, name), justify="right"))
    console = output()
    done = f"{len(run.records)} of {counted(run.rounds, 'round')}"
    lines = [f"{run.method} on {run.data}, seed {run.seed}: {run.status}, {done}"]
    lines += [run.sentence] if run.sentence else []
    lines += [f"ended early: {run.why}"] if run.why else []
    lines += [f"trained {line}" for line in worded_batches(run.batches)]
    lines += [
        f"left out: client {_cell(run.name_of(one.client))} in {one.times} of {counted(one.asked, 'round')}, mostly because {one.reason}"
        for one in left_out(run.records)[:_LEFT_OUT]
    ]
    print_told(lines, console)
    console.print(table)
    if 0 < len(each) <= _MOST:
        console.print()
        console.print(_clients_table(each, name))
    echo("\n" + tomli_w.dumps(dict(run.settings)).rstrip())


def _by_client(run: SavedRun, name: str) -> list[dict[str, Any]]:
    """A row for each client that was measured: its number, its name and its values."""
    kinds = (CLIENT, PERSONAL) if has_personal(run.records, name) else (CLIENT,)
    found = {kind + name: of_clients(run.records, kind + name) for kind in kinds}
    return [
        {"client": client, "name": run.name_of(client)}
        | {metric: values.get(client) for metric, values in found.items()}
        for client in sorted({client for values in found.values() for client in values})
    ]


def _clients_table(rows: Sequence[dict[str, Any]], metric: str) -> Table:
    heads = [head for head in rows[0] if head not in ("client", "name")]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("client")
    for head in heads:
        table.add_column(metric_words(head), justify="right")
    for row in rows:
        cells = [number(math.nan if row[head] is None else row[head], metric) for head in heads]
        table.add_row(_cell(row["name"]), *cells)
    return table


def in_words(key: str, value: Any, metric: str) -> str:
    """A measure for people: shares in percent, bytes with their unit."""
    if not isinstance(value, (int, float)):
        return "never" if value is None else str(value)
    if key.startswith("bytes ") or key == "peak memory":
        return bytes_in_words(value)
    if not isinstance(value, float):
        return str(value)
    of_metric = key.removeprefix("train_").removeprefix("client ").removeprefix("own model's ").startswith(metric)
    if key in _SHARES or (of_metric and is_share(metric)):
        return percent(value)
    return f"{value:.1f} s" if key == "seconds" else f"{value:.4g}"


def places(folders: Sequence[Path] | None) -> list[Path]:
    """Where to look for runs."""
    if folders:
        return list(folders)
    if not Path("runs").is_dir():
        raise CounterpoiseError("There is no folder runs here. Say where to look.")
    return [Path("runs")]


def _one(folder: Path) -> SavedRun:
    if not any((folder / name).exists() for name in ("config.toml", FAILURE)):
        if not folder.exists():
            raise no_folder(folder)
        if (folder / COMPARISON).exists():
            raise CounterpoiseError(
                f"{folder} holds a comparison, not a run: see it with `counterpoise runs compare {folder}`, or show one "
                "of the runs in its folders."
            )
        raise CounterpoiseError(f"{folder} holds no run: there is no config.toml in it.")
    return read_run(folder)


def chosen(
    folders: Sequence[Path] | None,
    method: str,
    data: str,
    since: str,
    before: str,
    read: Callable[[Path], SavedRun] = read_run,
) -> list[SavedRun]:
    """The runs in these folders that match all filters, the latest last."""
    first, end = _day(since, "--since"), _day(before, "--before")
    found = (
        run
        for run in map(read, run_folders(places(folders)))
        if method in run.method
        and data in run.data
        and (first is None or run.changed.date() >= first)
        and (end is None or run.changed.date() < end)
    )
    return sorted(found, key=lambda run: run.changed)


def _day(text: str, option: str) -> datetime.date | None:
    try:
        return datetime.date.fromisoformat(text) if text else None
    except ValueError:
        raise CounterpoiseError(f"{option} takes a day such as 2026-01-31, not {text!r}.") from None


def _plain(run: SavedRun) -> dict[str, Any]:
    of_clients = own_curve(run.records) if has_personal(run.records) else []
    curves = {"": curve(run.records), "client_": client_curve(run.records), "personal_": of_clients}
    return {
        "folder": str(run.path),
        "method": run.method,
        "data": run.data,
        "seed": run.seed,
        "rounds": len(run.records),
        "asked": run.rounds,
        **{f"{kind}accuracy": value if (value := last(of)) == value else None for kind, of in curves.items()},
        "status": run.status,
        "sentence": run.sentence or None,
        "why": run.why or None,
        "doubts": list(run.doubts),
        "changed": run.changed.isoformat(timespec="seconds"),
    }
